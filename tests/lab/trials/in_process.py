"""An engine for tests of what surrounds the workers."""

from __future__ import annotations


class Counting:
    """An engine in this process that counts what it runs."""

    remote = False

    def __init__(self):
        self.ran = []

    def run(self, function, items, started):
        for index, item in enumerate(items):
            started(index)
            self.ran.append(item)
            yield index, function(item)

    def close(self):
        pass
