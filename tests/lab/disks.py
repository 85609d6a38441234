"""Small disks that are real: a file with a file system in it, mounted at a path in the node."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tests.lab.machine import LabError, mounts_below, run, unmount_below


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """A disk of `size` bytes (its file system's own tables included) seen at `path` in the node."""

    path: str
    size: int
    image: Path
    mount: Path


def make(home: Path, number: int, path: str, size: int) -> Disk:
    """Make the image and its file system; empty, and nothing of it reserved for root."""
    home.mkdir(exist_ok=True)
    disk = Disk(path=path, size=size, image=home / f"{number}.img", mount=home / str(number))
    with disk.image.open("wb") as image:
        image.truncate(size)
    run("mkfs.ext4", "-q", "-F", "-m", "0", disk.image)
    attach(disk)
    (disk.mount / "lost+found").rmdir()
    return disk


def attach(disk: Disk) -> None:
    """Mount the disk on this machine, where a node that boots binds it from."""
    disk.mount.mkdir(exist_ok=True)
    if disk.mount not in mounts_below(disk.mount):
        run("mount", "-o", "loop", disk.image, disk.mount)


def detach(disk: Disk) -> None:
    unmount_below(disk.mount)


def own_like(disk: Disk, directory: Path) -> None:
    """The new disk's top takes over mode and owner of the directory that it covers."""
    there = directory.stat()
    os.chown(disk.mount, there.st_uid, there.st_gid)
    disk.mount.chmod(stat.S_IMODE(there.st_mode))


def show(disk: Disk, leader: int) -> None:
    """Mount the disk in a node that is running already, whose PID 1 is `leader`."""
    device = run("findmnt", "-n", "-o", "SOURCE", "--mountpoint", disk.mount).stdout.strip()
    # A bind cannot cross into the node's mounts; the same block device mounted once more can.
    name = f"lab-{Path(device).name}"
    node_device = Path(f"/proc/{leader}/root/dev/{name}")
    number = Path(device).stat().st_rdev
    if node_device.exists():
        node_device.unlink()
    os.mknod(node_device, stat.S_IFBLK | 0o600, number)
    run("nsenter", f"--target={leader}", "--mount", "mount", f"/dev/{name}", disk.path)
    node_device.unlink()


def filler(disk: Disk) -> Path:
    """The file that takes up room, as this machine sees it."""
    return disk.mount / ".lab-filler"


def fill(disk: Disk, leave: int) -> None:
    """Take all of the disk's free room but `leave` bytes (to about a block)."""
    filler(disk).unlink(missing_ok=True)
    room = os.statvfs(disk.mount)
    take = room.f_bavail * room.f_frsize - leave
    if take <= 0:
        raise LabError(f"{disk.path}: has no {leave} bytes left to leave")
    # fallocate ends with no space left where the file's own tables need a block: then take less.
    while take > 0 and run("fallocate", "-l", str(take), filler(disk), check=False).returncode != 0:
        take -= room.f_frsize
