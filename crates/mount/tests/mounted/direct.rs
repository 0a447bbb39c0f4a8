//! Asynchronous direct writes (io_submit(2)) beside readers that go through the page cache.
//!
//! Promise: direct-writes

use std::fs;
use std::process::Command;

use crate::setting::{Setting, VERSIONS, may_mount};

/// Four threads write a file with direct I/O, each its own parts and several at a time. Four processes read
/// it through the page cache all the time. After each round of writes, every part must read as it was
/// written.
const SCRIPT: &str = r"
import ctypes, mmap, os, sys, threading
SETUP, DESTROY, EVENTS, SUBMIT = (206, 207, 208, 209) if os.uname().machine == 'x86_64' else (0, 1, 4, 2)
PART, PARTS, WRITERS, READERS, ROUNDS = 65536, 16, 4, 4, 60
PWRITE = 1
libc = ctypes.CDLL(None, use_errno=True)
path = sys.argv[1]

class Iocb(ctypes.Structure):
    _fields_ = [('data', ctypes.c_uint64), ('key', ctypes.c_uint32), ('rw_flags', ctypes.c_int32),
        ('opcode', ctypes.c_uint16), ('priority', ctypes.c_int16), ('fd', ctypes.c_uint32),
        ('buffer', ctypes.c_uint64), ('bytes', ctypes.c_uint64), ('offset', ctypes.c_int64),
        ('reserved', ctypes.c_uint64), ('flags', ctypes.c_uint32), ('eventfd', ctypes.c_uint32)]

class Event(ctypes.Structure):
    _fields_ = [('data', ctypes.c_uint64), ('iocb', ctypes.c_uint64),
        ('result', ctypes.c_int64), ('result2', ctypes.c_int64)]

def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

failed = []

def write(fd, writer, value):
    try:
        context = ctypes.c_ulong(0)
        call(SETUP, PARTS, ctypes.byref(context))
        page_aligned = mmap.mmap(-1, PART)
        page_aligned[:] = bytes([value]) * PART
        address = ctypes.addressof(ctypes.c_char.from_buffer(page_aligned))
        own = range(writer, PARTS, WRITERS)
        iocbs = [Iocb(opcode=PWRITE, fd=fd, buffer=address, bytes=PART, offset=part * PART) for part in own]
        pointers = (ctypes.POINTER(Iocb) * len(iocbs))(*map(ctypes.pointer, iocbs))
        sent = call(SUBMIT, context, ctypes.c_long(len(iocbs)), pointers)
        assert sent == len(iocbs)
        events = (Event * sent)()
        done = 0
        while done < sent:
            new = call(EVENTS, context, ctypes.c_long(1), ctypes.c_long(sent), events, None)
            assert all(event.result == PART for event in events[:new])
            done += new
        call(DESTROY, context)
    except BaseException as error:
        failed.append(error)

def read_on():
    fd = os.open(path, os.O_RDONLY)
    while os.getppid() == parent:
        for part in range(PARTS): os.pread(fd, PART, part * PART)
    os._exit(0)

parent = os.getpid()
open(path, 'wb').write(bytes(PART * PARTS))
readers = []
for _ in range(READERS):
    child = os.fork()
    if child == 0: read_on()
    readers.append(child)
fds = [os.open(path, os.O_RDWR | os.O_DIRECT) for _ in range(WRITERS)]
look = os.open(path, os.O_RDONLY)
stale = 0
for value in range(1, ROUNDS + 1):
    threads = [threading.Thread(target=write, args=(fd, n, value)) for n, fd in enumerate(fds)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    stale += sum(os.pread(look, PART, part * PART) != bytes([value]) * PART for part in range(PARTS))
for child in readers:
    os.kill(child, 9)
    os.waitpid(child, 0)
if failed: raise failed[0]
print(stale)
";

#[test]
fn what_was_written_directly_and_asynchronously_is_read_through_the_page_cache_afterwards() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        for passthrough in [true, false] {
            let setting =
                Setting::with(&format!("vers={version}"), |options| options.passthrough = passthrough);
            let python = Command::new("python3").args(["-c", SCRIPT]).arg(setting.at("file")).output();
            let Ok(output) = python else {
                eprintln!("skipped: there is no python3 to write with");
                return;
            };
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(said, "0", "stale parts, version {version}, passthrough {passthrough}: {errors}");
            let there = fs::read(setting.there("file")).unwrap();
            assert!(there.iter().all(|byte| *byte == 60), "version {version}: the origin has something else");
        }
    }
}
