/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of S3 that need no service: signatures (the examples of the Amazon S3 API reference), XML, credentials,
 * places, header lines.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static char folder[128];
static iso_arena *arena;

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(folder);
  arena = iso_arena_create();
  static const char *const names[] = {
      "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN", "AWS_PROFILE",
      "AWS_REGION",        "AWS_DEFAULT_REGION",          "AWS_ENDPOINT_URL",  "AWS_ENDPOINT_URL_S3",
      "AWS_CONFIG_FILE",   "AWS_SHARED_CREDENTIALS_FILE",
  };
  for (size_t i = 0; i < ISO_COUNT(names); i++) unsetenv(names[i]);
  setenv("HOME", folder, 1);
  return 0;
}

static int teardown(void **state) {
  iso_arena_destroy(&arena);
  scratch_remove(folder);
  return 0;
}

/* ---- signatures ---- */

static void assert_signs(const char *method, const char *path, const char *query, const iso_s3_header *headers,
                         size_t count, const char *payload, const char *signature) {
  iso_s3_to_sign form = {method, path, query, headers, count, payload, "us-east-1", "20130524T000000Z"};
  iso_string out = {0};
  assert_int_equal(iso_s3_sign(&form, "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", &out),
                   ISO_OK);
  static const char begin[] =
      "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=";
  assert_memory_equal(out.data, begin, sizeof begin - 1);
  assert_string_equal(out.data + out.length - 64, signature);
  iso_string_fini(&out);
}

static void test_published_signatures(void **state) {
  const char *host = "examplebucket.s3.amazonaws.com", *date = "20130524T000000Z";
  const iso_s3_header range[] = {
      {"host", host}, {"range", "bytes=0-9"}, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", date}};
  assert_signs("GET", "/test.txt", "", range, 4, EMPTY,
               "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  const iso_s3_header plain[] = {{"host", host}, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", date}};
  assert_signs("GET", "/", "lifecycle=", plain, 3, EMPTY,
               "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  assert_signs("GET", "/", "max-keys=2&prefix=J", plain, 3, EMPTY,
               "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  const char *body = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"; /* "Welcome to Amazon S3." */
  const iso_s3_header put[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                               {"host", host},
                               {"x-amz-content-sha256", body},
                               {"x-amz-date", date},
                               {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  iso_string path = {0};
  iso_s3_encode(&path, "/test$file.text", 15, true);
  assert_string_equal(path.data, "/test%24file.text");
  assert_signs("PUT", path.data, "", put, 5, body, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  iso_string_fini(&path);
}

static void test_encode(void **state) {
  iso_string out = {0};
  iso_s3_encode(&out, "a b/+~é%\n", 10, true);
  assert_string_equal(out.data, "a%20b/%2B~%C3%A9%25%0A");
  out.length = 0;
  iso_s3_encode(&out, "a/b=c&d", 7, false);
  assert_string_equal(out.data, "a%2Fb%3Dc%26d");
  iso_string_fini(&out);
}

/* ---- XML ---- */

static const char *collect(void *context, const char *path, const char *text, size_t length) {
  iso_string_printf(context, "%s=%s;", path, text);
  return NULL;
}

static void assert_walks(const char *text, const char *expected) {
  iso_string out = {0};
  assert_null(iso_xml_walk(text, strlen(text), collect, &out));
  assert_string_equal(out.data, expected);
  iso_string_fini(&out);
}

static void assert_refuses(const char *text, const char *cause) {
  iso_string out = {0};
  const char *found = iso_xml_walk(text, strlen(text), collect, &out);
  assert_non_null(found);
  assert_string_equal(found, cause);
  iso_string_fini(&out);
}

static void test_xml(void **state) {
  assert_walks(
      "\xEF\xBB\xBF<?xml version=\"1.0\"?>\n<a x='>'>\n<b>1 &lt;&amp;&gt;&quot;&apos; &#65;&#x20AC;&#x1F600;</b>"
      "<c /><d y=\"/\"></d >\n</a>\n",
      "a/b=1 <&>\"' A\xE2\x82\xAC\xF0\x9F\x98\x80;a/c=;a/d=;a=\n;");
  assert_refuses("", "it ends early");
  assert_refuses("<?xml", "it ends early");
  assert_refuses("<a>", "it ends early");
  assert_refuses("<a><b></b>", "it ends early");
  assert_refuses("<a></b>", "an end tag of another element");
  assert_refuses("</a>", "an end tag without a beginning");
  assert_refuses("<a/><b/>", "more than one root element");
  assert_refuses("<a/>x", "text outside the root element");
  assert_refuses("x<a/>", "text outside the root element");
  assert_refuses("<!DOCTYPE a><a/>", "a declaration or comment");
  assert_refuses("<a><![CDATA[x]]></a>", "a declaration or comment");
  assert_refuses("<a>&x;</a>", "an unknown entity");
  assert_refuses("<a>&", "an unknown entity");
  assert_refuses("<a>&#", "a malformed character reference");
  assert_refuses("<a>&#0;</a>", "a malformed character reference");
  assert_refuses("<a>&#xD800;</a>", "a malformed character reference");
  assert_refuses("<a>&#x110000;</a>", "a malformed character reference");
  assert_refuses("<a>&#123456789;</a>", "a malformed character reference");
  assert_refuses("<a b=\"></a>", "a tag that does not end");
  assert_refuses("<a", "a tag that does not end");
  assert_refuses("<", "a tag without a name");
  assert_refuses("<a><b><c><d><e><f><g><h><i>", "elements nested too deeply");
}

static const char page_text[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>p%2F</Prefix>"
    "<KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>1/a=&amp;</NextContinuationToken>"
    "<Contents><Key>p/a+b%2B%C3%A9</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;0123-4&quot;</ETag><Size>5000000000</Size><StorageClass>STANDARD</StorageClass></Contents>"
    "<Contents><Key>p/z</Key><Size>0</Size><ETag>\"e\"</ETag></Contents></ListBucketResult>";

static void test_page(void **state) {
  iso_s3_page page;
  assert_null(iso_s3_page_init(&page, arena, page_text, sizeof page_text - 1));
  assert_int_equal(page.count, 2);
  assert_string_equal(page.objects[0].key, "p/a b+\xC3\xA9");
  assert_int_equal(page.objects[0].bytes, 5000000000);
  assert_string_equal(page.objects[0].etag, "0123-4");
  assert_string_equal(page.objects[1].key, "p/z");
  assert_true(page.more);
  assert_string_equal(page.next, "1/a=&");
  iso_s3_page_fini(&page);
  for (size_t bytes = 0; bytes < sizeof page_text - 1; bytes++)
    assert_non_null(iso_s3_page_init(&page, arena, page_text, bytes));
}

static void assert_page_refused(const char *inside, const char *cause) {
  iso_s3_page page;
  const char *text = iso_arena_printf(arena, "<ListBucketResult>%s</ListBucketResult>", inside);
  const char *found = iso_s3_page_init(&page, arena, text, strlen(text));
  assert_non_null(found);
  assert_string_equal(found, cause);
}

static void test_page_refused(void **state) {
  static const char done[] = "<IsTruncated>false</IsTruncated>";
  char text[512];
  assert_page_refused("", "it does not say whether it is complete");
  assert_page_refused("<IsTruncated>true</IsTruncated>", "it does not say how to go on");
  assert_page_refused("<IsTruncated>maybe</IsTruncated>", "IsTruncated is neither true nor false");
  assert_page_refused("<Contents><Key>k</Key><Size>1</Size></Contents>", "an object without Key, Size or ETag");
  assert_page_refused("<Contents><Key></Key></Contents>", "an object with two keys or an empty one");
  assert_page_refused("<Contents><Key>a</Key><Key>b</Key></Contents>", "an object with two keys or an empty one");
  assert_page_refused("<Contents><Size>-1</Size></Contents>", "a size that is no number");
  assert_page_refused("<Contents><Size>9999999999999999999</Size></Contents>", "a size that is no number");
  assert_page_refused("<Contents><ETag>a\nb</ETag></Contents>", "an ETag that cannot be used");
  for (int i = 0; i < 3; i++) {
    static const char *const keys[] = {"%", "%4", "a%00b"};
    snprintf(text, sizeof text,
             "<EncodingType>url</EncodingType>%s<Contents><Key>%s</Key><Size>1</Size><ETag>e</ETag></Contents>", done,
             keys[i]);
    assert_page_refused(text, "a key that is encoded wrongly");
  }
  iso_s3_page page;
  static const char html[] = "<html><body>Bad gateway</body></html>";
  assert_string_equal(iso_s3_page_init(&page, arena, html, sizeof html - 1), "it is not a listing");
}

static void test_error(void **state) {
  static const char text[] = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>Gone &amp; lost</Message>"
                             "<Key>k</Key><RequestId>1</RequestId></Error>";
  iso_s3_error error;
  iso_s3_error_read(&error, text, sizeof text - 1);
  assert_string_equal(error.code, "NoSuchKey");
  assert_string_equal(error.message, "Gone & lost");
  iso_s3_error_read(&error, text, sizeof text - 5);
  assert_string_equal(error.code, "");
  iso_s3_error_read(&error, "", 0);
  assert_string_equal(error.code, "");
}

/* ---- config ---- */

static void write_aws(const char *name, const char *text) {
  mkdir(iso_path_join(arena, folder, ".aws"), 0777);
  scratch_write(iso_arena_printf(arena, "%s/.aws/%s", folder, name), text, strlen(text));
}

static void test_missing_credentials(void **state) {
  iso_s3_config config;
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "no S3 credentials: AWS_ACCESS_KEY_ID is not set"));
  setenv("AWS_ACCESS_KEY_ID", "A", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "AWS_SECRET_ACCESS_KEY is not"));
  unsetenv("AWS_ACCESS_KEY_ID");
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  unsetenv("AWS_SECRET_ACCESS_KEY");
  write_aws("credentials", "[default]\naws_access_key_id = a\n[other]\naws_secret_access_key = b\n");
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  assert_null(config.arena);
}

static void test_credentials(void **state) {
  iso_s3_config config;
  write_aws("credentials", "# mine\n[default]\naws_access_key_id=DA\naws_secret_access_key=DS/+=\n\n [ work ] \r\n"
                           "aws_access_key_id = WA \r\naws_secret_access_key\t=\tWS\naws_session_token = T==");
  write_aws("config", "[default]\nregion = eu-west-1\n[profile work]\nregion=ap-south-1\n");
  assert_int_equal(iso_s3_config_init(&config), ISO_OK);
  assert_string_equal(config.access_key, "DA");
  assert_string_equal(config.secret_key, "DS/+=");
  assert_string_equal(config.token, "");
  assert_string_equal(config.region, "eu-west-1");
  iso_s3_config_fini(&config);
  setenv("AWS_PROFILE", "work", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_OK);
  assert_string_equal(config.access_key, "WA");
  assert_string_equal(config.secret_key, "WS");
  assert_string_equal(config.token, "T==");
  assert_string_equal(config.region, "ap-south-1");
  iso_s3_config_fini(&config);
  setenv("AWS_ACCESS_KEY_ID", "EA", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "ES", 1);
  setenv("AWS_REGION", "us-west-2", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_OK);
  assert_string_equal(config.access_key, "EA");
  assert_string_equal(config.token, "");
  assert_string_equal(config.region, "us-west-2");
  iso_s3_config_fini(&config);
  setenv("AWS_SECRET_ACCESS_KEY", "E\nX-Evil: 1", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  assert_null(strstr(iso_last_error(), "Evil"));
  setenv("AWS_SECRET_ACCESS_KEY", "ES", 1);
  setenv("AWS_REGION", "RegionOne", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_OK);
  iso_s3_config_fini(&config);
  setenv("AWS_REGION", "evil.example/", 1);
  assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
}

static void assert_place(const char *endpoint, const char *region, const char *bucket, const char *key, const char *url,
                         const char *host, const char *path) {
  iso_s3_place place;
  setenv("AWS_ACCESS_KEY_ID", "A", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  setenv("AWS_ENDPOINT_URL", endpoint, 1);
  setenv("AWS_DEFAULT_REGION", region, 1);
  iso_s3_config config;
  assert_int_equal(iso_s3_config_init(&config), ISO_OK);
  assert_int_equal(iso_s3_place_init(&place, &config, bucket, key), ISO_OK);
  assert_string_equal(place.url.data, url);
  assert_string_equal(place.host.data, host);
  assert_string_equal(place.path.data, path);
  iso_s3_place_fini(&place);
  iso_s3_config_fini(&config);
}

static void test_places(void **state) {
  assert_place("", "eu-west-1", "bucket", "a b/c", "https://bucket.s3.eu-west-1.amazonaws.com/a%20b/c",
               "bucket.s3.eu-west-1.amazonaws.com", "/a%20b/c");
  assert_place("", "eu-west-1", "my.bucket", "k", "https://s3.eu-west-1.amazonaws.com/my.bucket/k",
               "s3.eu-west-1.amazonaws.com", "/my.bucket/k");
  assert_place("", "cn-north-1", "bucket", "", "https://bucket.s3.cn-north-1.amazonaws.com.cn/",
               "bucket.s3.cn-north-1.amazonaws.com.cn", "/");
  assert_place("http://127.0.0.1:9000/", "us-east-1", "bucket", "k", "http://127.0.0.1:9000/bucket/k", "127.0.0.1:9000",
               "/bucket/k");
  assert_place("https://store.example:443", "us-east-1", "bucket", "../k", "https://store.example/bucket/../k",
               "store.example", "/bucket/../k");
  assert_place("http://gate.example/s3", "us-east-1", "bucket", "k", "http://gate.example/s3/bucket/k", "gate.example",
               "/s3/bucket/k");
  iso_s3_config config;
  static const char *const wrong[] = {"127.0.0.1:9000", "ftp://host", "http://", "http://host?x", "http://u:p@host"};
  for (size_t i = 0; i < ISO_COUNT(wrong); i++) {
    setenv("AWS_ENDPOINT_URL", wrong[i], 1);
    assert_int_equal(iso_s3_config_init(&config), ISO_ERR_CONFIG);
  }
}

static void test_paths(void **state) {
  char bucket[64];
  const char *key;
  assert_int_equal(iso_s3_path_split("s3://bucket/a/b", bucket, &key), ISO_OK);
  assert_string_equal(bucket, "bucket");
  assert_string_equal(key, "a/b");
  assert_int_equal(iso_s3_path_split("s3://bucket", bucket, &key), ISO_OK);
  assert_string_equal(key, "");
  assert_int_equal(iso_s3_path_split("s3://bucket//x", bucket, &key), ISO_OK);
  assert_string_equal(key, "/x");
  static const char *const wrong[] = {"s3://",        "s3:///k",   "s3://ab/k", "s3://a b/k", "s3://evil.example:80/k",
                                      "s3://a?b=c/k", "s3://.../k"};
  for (size_t i = 0; i < ISO_COUNT(wrong); i++)
    assert_int_equal(iso_s3_path_split(wrong[i], bucket, &key), ISO_ERR_CONFIG);
}

/* ---- header lines ---- */

static void take(iso_http_response *response, const char *line) {
  iso_http_header_take(response, line, strlen(line));
}

static void test_headers(void **state) {
  iso_http_response r = {.content_length = -1};
  take(&r, "ETag: \"old\"\r\n");
  take(&r, "HTTP/1.1 206 Partial Content\r\n");
  assert_string_equal(r.etag, "");
  take(&r, "etag:\"abc\" \r\n");
  take(&r, "Content-Range:  bytes 0-9/10\r\n");
  take(&r, "CONTENT-LENGTH: 10\r\n");
  take(&r, "Retry-After: 3\r\n");
  take(&r, "X-Amz-Bucket-Region: eu-west-1\r\n");
  assert_string_equal(r.etag, "\"abc\"");
  assert_string_equal(r.content_range, "bytes 0-9/10");
  assert_int_equal(r.content_length, 10);
  assert_true(r.retry_after_s == 3);
  assert_string_equal(r.region, "eu-west-1");
  r.content_length = -1;
  take(&r, "Content-Length: -5\r\n");
  take(&r, "Content-Length: 99999999999999999999999999\r\n");
  take(&r, "Content-Length:\r\n");
  take(&r, "Content-Length");
  take(&r, "");
  assert_int_equal(r.content_length, -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_published_signatures, setup, teardown),
      cmocka_unit_test_setup_teardown(test_encode, setup, teardown),
      cmocka_unit_test_setup_teardown(test_xml, setup, teardown),
      cmocka_unit_test_setup_teardown(test_page, setup, teardown),
      cmocka_unit_test_setup_teardown(test_page_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(test_error, setup, teardown),
      cmocka_unit_test_setup_teardown(test_missing_credentials, setup, teardown),
      cmocka_unit_test_setup_teardown(test_credentials, setup, teardown),
      cmocka_unit_test_setup_teardown(test_places, setup, teardown),
      cmocka_unit_test_setup_teardown(test_paths, setup, teardown),
      cmocka_unit_test_setup_teardown(test_headers, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
