#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""populate.py ENDPOINT BUCKET [FOLDER]: makes a bucket and a user in a moto server, uploads the files of FOLDER, and
from then on lets the server check every request's signature. Prints the user's access key and secret."""
import json
import os
import sys
import urllib.request

import boto3
from botocore.config import Config


def reset_auth(endpoint, count):
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data=str(count).encode(), method="POST")
    request.add_header("Content-Type", "text/plain")  # else the server takes it for a form
    urllib.request.urlopen(request, timeout=30).read()


def client(name, endpoint, key="setup", secret="setup"):
    return boto3.client(
        name,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(connect_timeout=10, read_timeout=60, s3={"addressing_style": "path"}),
    )


def main():
    endpoint, bucket = sys.argv[1:3]
    reset_auth(endpoint, 10**9)
    iam, s3 = client("iam", endpoint), client("s3", endpoint)
    s3.create_bucket(Bucket=bucket)
    iam.create_user(UserName="isotach")
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    iam.put_user_policy(
        UserName="isotach",
        PolicyName="s3",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]}),
    )
    key = iam.create_access_key(UserName="isotach")["AccessKey"]
    for folder, _, names in os.walk(sys.argv[3]) if len(sys.argv) > 3 else ():
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                s3.put_object(Bucket=bucket, Key=os.path.relpath(path, sys.argv[3]), Body=file.read())
    reset_auth(endpoint, 0)
    print(key["AccessKeyId"], key["SecretAccessKey"])


if __name__ == "__main__":
    main()
