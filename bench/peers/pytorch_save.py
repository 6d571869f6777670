# SPDX-License-Identifier: Apache-2.0
"""Training steps in PyTorch that save model and optimizer, in turns with steps that save nothing. Prints one JSON line.

    pytorch_save.py MODEL BATCH SEQ THREADS INTERVAL STEPS PAIRS save|async FOLDER

save: torch.save between two steps, synced; async: torch.distributed.checkpoint.async_save, which copies the state aside
and writes behind (one process, gloo). A save begins in the middle of each saving stretch.
"""
import contextlib
import io
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import pytorch_step  # noqa: E402

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402


class Saver:
    def __init__(self, mode, folder, state):
        self.mode, self.folder, self.state = mode, folder, state
        self.count, self.pending, self.stood_still = 0, None, []
        if mode == "async":
            distributed.init_process_group("gloo", store=distributed.FileStore(os.path.join(folder, "store"), 1), rank=0,
                                           world_size=1)

    def path(self, number):
        return os.path.join(self.folder, f"checkpoint-{number}")

    def save(self):
        began = time.monotonic()
        self.wait()
        self.count += 1
        if self.mode == "async":
            self.pending = checkpoint.async_save(self.state(), checkpoint_id=self.path(self.count))
        else:
            with open(self.path(self.count), "wb") as file:
                torch.save(self.state(), file)
                file.flush()
                os.fsync(file.fileno())
        self.stood_still.append(time.monotonic() - began)

    def wait(self):
        """Until the newest one is whole; the one before may go then."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None
        old = self.path(self.count - 1)
        if os.path.isdir(old):
            shutil.rmtree(old)
        elif os.path.exists(old):
            os.remove(old)

    def bytes(self):
        path = self.path(self.count)
        if os.path.isdir(path):
            return sum(entry.stat().st_size for entry in os.scandir(path))
        return os.stat(path).st_size

    def load(self):
        began = time.monotonic()
        if self.mode == "async":
            checkpoint.load(self.state(), checkpoint_id=self.path(self.count))
        else:
            torch.load(self.path(self.count), mmap=False, weights_only=True)
        return time.monotonic() - began


def main():
    name, mode, folder = sys.argv[1], sys.argv[8], sys.argv[9]
    batch, sequence, threads, interval, steps, pairs = map(int, sys.argv[2:8])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    step, model, optimizer = pytorch_step.make_step(name, batch, sequence, "eager")
    saver = Saver(mode, folder, lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    for _ in range(3):
        step()
    stretches = {False: [], True: []}
    for pair in range(pairs):
        for saving in ((False, True) if pair % 2 == 0 else (True, False)):
            walls = []
            for i in range(steps):
                began = time.monotonic()
                step()
                if saving and i % interval == min(interval, steps) // 2:
                    with contextlib.redirect_stdout(io.StringIO()):
                        saver.save()
                walls.append(time.monotonic() - began)
            stretches[saving].append(walls)
            saver.wait()
    print(json.dumps({"saving": stretches[True], "nothing": stretches[False], "stood_still_s": saver.stood_still,
                      "bytes": saver.bytes(), "load_s": saver.load(), "version": torch.__version__}))


main()
