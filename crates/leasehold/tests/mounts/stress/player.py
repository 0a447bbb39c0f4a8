"""A program of the stress run: it does what programs do to a few files that others work at too, in an order that the seed
decides, and says on its standard output what it begins ("b", "what"), when it is over ("e"), and each error that none of
this may give ("x").

    player.py DIRECTORY SEED [signals]

With `signals` a timer interrupts its system calls. Its maps are made by children: a file that another one cuts ends them.
"""

import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import sys

DIRECTORY, RNG = sys.argv[1], random.Random(int(sys.argv[2]))
FILES, LARGEST = 12, 60_000
# Others remove, rename, replace and lock what we use. (EOPNOTSUPP: version 3 has no holes and no xattrs.)
EXPECTED = {
    errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ESTALE, errno.EISDIR, errno.ENOTDIR, errno.EAGAIN,
    errno.EACCES, errno.EBUSY, errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.ELOOP, errno.EDEADLK,
}


def name():
    return os.path.join(DIRECTORY, f"f{RNG.randrange(FILES)}")


def data(most=LARGEST):
    return bytes([RNG.randrange(256)]) * RNG.randrange(1, most)


class Open:
    """A file, as long as it is needed."""

    def __init__(self, flags, path=None):
        self.fd = os.open(path or name(), flags, 0o666)

    def __enter__(self):
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


def read():
    with Open(os.O_RDONLY) as fd:
        while os.read(fd, RNG.randrange(1, 1 << 17)):
            pass


def read_somewhere():
    with Open(os.O_RDONLY) as fd:
        for _ in range(4):
            os.pread(fd, 5000, RNG.randrange(LARGEST))


def write():
    with Open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        os.write(fd, data())


def write_somewhere():
    with Open(os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, data(5000), RNG.randrange(LARGEST))
        os.pread(fd, 5000, RNG.randrange(LARGEST))
        if RNG.randrange(3) == 0:
            os.fsync(fd)


def append():
    with Open(os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
        os.write(fd, data(500))


def cut():
    os.truncate(name(), RNG.randrange(LARGEST))


def rename():
    os.rename(name(), name())


def remove():
    os.unlink(name())


def remove_open():
    path = name()
    with Open(os.O_RDWR | os.O_CREAT, path) as fd:
        os.write(fd, data())
        os.unlink(path)
        os.pread(fd, 5000, 0)
        os.fstat(fd)


def link():
    os.link(name(), name())


def symlink():
    path = name() + ".link"
    try:
        os.symlink("f1", path)
        os.readlink(path)
        os.stat(path)
    finally:
        os.unlink(path)


def stat():
    for _ in range(5):
        os.stat(name())


def names():
    assert len(os.listdir(DIRECTORY)) < 500


def names_and_attributes():
    with os.scandir(DIRECTORY) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)


def many_names():
    """Nodes that the kernel forgets soon."""
    directory = os.path.join(DIRECTORY, f"d{os.getpid()}-{RNG.randrange(1 << 30)}")
    os.mkdir(directory)
    for number in range(15):
        with Open(os.O_WRONLY | os.O_CREAT, os.path.join(directory, str(number))) as fd:
            os.write(fd, b"x")
    shutil.rmtree(directory)


def change():
    path = name()
    os.chmod(path, RNG.choice([0o644, 0o600, 0o666]))
    os.utime(path)


def lock():
    with Open(os.O_RDWR | os.O_CREAT) as fd:
        if RNG.randrange(2):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, RNG.randrange(1000))
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pread(fd, 5000, 0)


def copy():
    with Open(os.O_RDONLY) as source, Open(os.O_WRONLY | os.O_CREAT) as target:
        os.copy_file_range(source, target, 10_000)


def space():
    os.statvfs(DIRECTORY)


def child(work):
    """A child with all our descriptors; whatever becomes of it."""
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def fork():
    """The closes of the child are FLUSHes of ours."""
    with Open(os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, data(5000), 0)
        child(lambda: os.execv("/bin/true", ["true"]))
        os.pwrite(fd, data(5000), 5000)


def read_map():
    def work():
        with Open(os.O_RDONLY) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
            sum(pages[::4096])

    child(work)


def write_map():
    def work():
        with Open(os.O_RDWR) as fd, mmap.mmap(fd, 0) as pages:
            at = RNG.randrange(len(pages))
            pages[at:at + 1] = b"m"
            pages.flush()

    child(work)


PLAYS = [
    read, read, read_somewhere, write, write, write_somewhere, write_somewhere, append, cut, rename, remove, remove_open,
    link, symlink, stat, stat, names, names_and_attributes, many_names, change, lock, copy, space, fork, read_map, write_map,
]


def place(error):
    """The line of this file that met the error."""
    trace = error.__traceback__
    while trace.tb_next and trace.tb_next.tb_frame.f_code.co_filename == main.__code__.co_filename:
        trace = trace.tb_next
    return trace.tb_lineno


def say(line):
    os.write(1, line.encode() + b"\n")


def main():
    if sys.argv[3:] == ["signals"]:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    while True:
        play = RNG.choice(PLAYS)
        say(f"b {play.__name__}")
        try:
            play()
        except OSError as error:
            if error.errno not in EXPECTED:
                say(f"x {play.__name__}, line {place(error)}: {error}")
        except ValueError:
            pass  # An empty file cannot be mapped.
        say("e")


main()
