"""Reading a node's files: its own tree, or one below another root so that tests can build rigs.

Reading is total: what is not there or may not be read is None, bytes that are not UTF-8 become
replacement characters.
"""

from __future__ import annotations

import json
import os
import stat


class Tree:
    """Files as a node names them, read below `root` ("/" is the node itself)."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    @property
    def is_node(self) -> bool:
        return not self.root

    def at(self, path: str) -> str:
        """Where `path` really lies."""
        return self.root + path if self.root else path

    def data(self, path: str, limit: int = 16 << 20) -> bytes | None:
        """At most `limit` bytes of a file. Fifos and devices are never waited for."""
        try:
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        chunks: list[bytes] = []
        try:
            while limit > 0:
                chunk = os.read(descriptor, min(limit, 1 << 20))
                if not chunk:
                    break
                chunks.append(chunk)
                limit -= len(chunk)
        except OSError:
            # A process that ended while it was read (ESRCH): what was read is not trustworthy.
            return None
        finally:
            os.close(descriptor)
        return b"".join(chunks)

    def text(self, path: str, limit: int = 16 << 20) -> str | None:
        data = self.data(path, limit)
        return None if data is None else data.decode("utf-8", "replace")

    def lines(self, path: str, limit: int = 1 << 16) -> list[str]:
        """The lines of a small text file without the blanks around them; none of an absent one."""
        return [line.strip() for line in (self.text(path, limit) or "").splitlines()]

    def word(self, path: str) -> str | None:
        """A one-line file (sysfs, procfs) without its line end."""
        text = self.text(path, 4096)
        return None if text is None else text.strip()

    def parsed(self, path: str, limit: int = 1 << 20) -> object:
        """A JSON file's value; None where it is no JSON, too large, or not a regular file."""
        try:
            found = os.lstat(self.at(path))
            if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
                return None
            return json.loads((self.data(path, limit) or b"").decode("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    def names(self, path: str, limit: int = 10000) -> list[str]:
        """Names in a directory, sorted; empty where there is none."""
        try:
            return sorted(os.listdir(self.at(path)))[:limit]
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.at(path))

    def link(self, path: str) -> str | None:
        """Where a symbolic link points."""
        try:
            return os.readlink(self.at(path))
        except (OSError, ValueError):
            return None

    def resolved(self, path: str) -> str:
        """`path` with the links at its end followed, as the node names it, existing or not."""
        for _ in range(40):
            target = self.link(path)
            if target is None:
                break
            path = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return path
