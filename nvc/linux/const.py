"""Kernel constants and struct layouts, in the kernel's spelling, grouped by the header they are from.

Values are equal on x86-64 and aarch64 unless a table says otherwise. Layouts are ``struct`` format strings, native
byte order; tests/nvc/linux/test_const.py compiles a C file that prints the headers' values and compares.
"""

from __future__ import annotations

import os

# asm/unistd_64.h (x86-64) and asm-generic/unistd.h (aarch64): the calls made through syscall(2).
_NUMBERS = {
    "x86_64": {
        "bpf": 321,
        "capget": 125,
        "capset": 126,
        "close_range": 436,
        "fsconfig": 431,
        "fsmount": 432,
        "fsopen": 430,
        "fstatfs": 138,
        "inotify_add_watch": 254,
        "inotify_init1": 294,
        "inotify_rm_watch": 255,
        "madvise": 28,
        "mount": 165,
        "mount_setattr": 442,
        "move_mount": 429,
        "open_tree": 428,
        "openat2": 437,
        "pidfd_getfd": 438,
        "pidfd_open": 434,
        "pivot_root": 155,
        "prctl": 157,
        "prlimit64": 302,
        "sched_setattr": 314,
        "seccomp": 317,
        "setfsgid": 123,
        "setfsuid": 122,
        "setns": 308,
        "statx": 332,
        "tgkill": 234,
        "timer_create": 222,
        "timer_settime": 223,
        "umount2": 166,
        "unshare": 272,
    },
    "aarch64": {
        "bpf": 280,
        "capget": 90,
        "capset": 91,
        "close_range": 436,
        "fsconfig": 431,
        "fsmount": 432,
        "fsopen": 430,
        "fstatfs": 44,
        "inotify_add_watch": 27,
        "inotify_init1": 26,
        "inotify_rm_watch": 28,
        "madvise": 233,
        "mount": 40,
        "mount_setattr": 442,
        "move_mount": 429,
        "open_tree": 428,
        "openat2": 437,
        "pidfd_getfd": 438,
        "pidfd_open": 434,
        "pivot_root": 41,
        "prctl": 167,
        "prlimit64": 261,
        "sched_setattr": 274,
        "seccomp": 277,
        "setfsgid": 152,
        "setfsuid": 151,
        "setns": 268,
        "statx": 291,
        "tgkill": 131,
        "timer_create": 107,
        "timer_settime": 110,
        "umount2": 39,
        "unshare": 97,
    },
}
#: Name of the machine's instruction set, as uname(2) gives it.
MACHINE = os.uname().machine
#: Call name -> number on this machine; empty on a machine that is in no table, where every call answers ENOSYS.
NR = _NUMBERS.get(MACHINE, {})

# fcntl.h: not in the os module.
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

# linux/openat2.h; struct open_how {u64 flags, mode, resolve;}
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
OPEN_HOW = "=QQQ"

# sys/inotify.h
IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
#: Of IN_Q_OVERFLOW.
NO_WATCH = -1

# asm-generic/resource.h; struct rlimit64 {u64 rlim_cur, rlim_max;}
RLIMIT_CPU = 0
RLIMIT_FSIZE = 1
RLIMIT_DATA = 2
RLIMIT_CORE = 4
RLIMIT_NOFILE = 7
RLIMIT_MEMLOCK = 8
RLIMIT_AS = 9
#: RLIM64_INFINITY.
NO_LIMIT = (1 << 64) - 1
RLIMIT64 = "=QQ"

# linux/sched.h; linux/sched/types.h: struct sched_attr {u32 size, policy; u64 flags; s32 nice; u32 priority;
# u64 runtime, deadline, period; u32 util_min, util_max;}
SCHED_FLAG_RESET_ON_FORK = 0x01
SCHED_ATTR = "=IIQiIQQQII"

# asm-generic/mman-common.h, since Linux 5.14
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

# linux/mount.h (open_tree, move_mount, mount_setattr, fsopen family);
# struct mount_attr {u64 attr_set, attr_clr, propagation, userns_fd;}
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR = "=QQQQ"
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6

# linux/mount.h (mount(2), umount2(2))
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_SHARED = 0x100000
MS_RELATIME = 0x200000
MNT_FORCE = 1
MNT_DETACH = 2

# linux/fs.h
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IMMUTABLE_FL, FS_APPEND_FL = 0x10, 0x20

# linux/magic.h
PROC_SUPER_MAGIC = 0x9FA0
TMPFS_MAGIC = 0x01021994
FUSE_SUPER_MAGIC = 0x65735546

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# linux/stat.h; struct statx is 256 bytes, these are the offsets that are read.
STATX_MNT_ID = 0x1000
STATX_ATTR_MOUNT_ROOT = 0x2000
STATX_SIZE = 256
STATX_OFFSETS = {
    "stx_mask": 0,
    "stx_attributes": 8,
    "stx_mode": 0x1C,
    "stx_ino": 0x20,
    "stx_rdev_major": 0x80,
    "stx_mnt_id": 0x90,
}
STATX_TYPE, STATX_INO = 0x1, 0x100
AT_STATX_DONT_SYNC = 0x4000

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_GET_PDEATHSIG = 2
PR_SET_NAME = 15
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2

# linux/securebits.h
SECBIT_NO_SETUID_FIXUP = 4

# linux/capability.h; header {u32 version; int pid;}, then two of {u32 effective, permitted, inheritable;}
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAP_HEADER = "=Ii"
CAP_DATA = "=IIIIII"

# linux/seccomp.h, linux/filter.h, linux/audit.h; struct sock_filter {u16 code; u8 jt, jf; u32 k;},
# struct sock_fprog {unsigned short len; struct sock_filter *filter;}
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
SECCOMP_RET_KILL_PROCESS = 0x80000000
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_ALLOW = 0x7FFF0000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
SOCK_FILTER = "=HBBI"
SOCK_FPROG = "@HP"

# linux/bpf.h
BPF_PROG_LOAD = 5
BPF_PROG_ATTACH = 8
BPF_PROG_DETACH = 9
BPF_PROG_GET_FD_BY_ID = 13
BPF_MAP_GET_FD_BY_ID = 14
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_QUERY = 16
BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_OVERRIDE = 1
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
BPF_F_QUERY_EFFECTIVE = 1
BPF_DEVCG_ACC_MKNOD = 1
BPF_DEVCG_ACC_READ = 2
BPF_DEVCG_ACC_WRITE = 4
BPF_DEVCG_DEV_CHAR = 2
BPF_PSEUDO_MAP_FD = 1
BPF_PSEUDO_MAP_VALUE = 2
#: struct bpf_insn {u8 code; u8 dst:4, src:4; s16 off; s32 imm;}
BPF_INSN = "=BBhi"
# union bpf_attr, one layout a command, up to the last member used here (a shorter attr is legal: the kernel
# takes the rest as zero).
#: prog_type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, prog_flags, prog_name
BPF_ATTR_LOAD = "=IIQQIIQII16s"
#: target_fd, attach_bpf_fd, attach_type, attach_flags, replace_bpf_fd
BPF_ATTR_ATTACH = "=IIIII"
#: target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt (and padding)
BPF_ATTR_QUERY = "=IIIIQII"
#: bpf_fd, info_len, info
BPF_ATTR_INFO = "=IIQ"
#: struct bpf_prog_info: the members that are read or written, by offset.
BPF_PROG_INFO_SIZE = 104
BPF_PROG_INFO_OFFSETS = {
    "type": 0,
    "id": 4,
    "xlated_prog_len": 20,
    "xlated_prog_insns": 32,
    "map_ids": 56,
    "name": 64,
    "ifindex": 80,
}
#: The bit after ifindex: gpl_compatible:1.
BPF_PROG_INFO_GPL_OFFSET = 84

# linux/memfd.h, linux/fcntl.h: os.memfd_create and fcntl have these from Python 3.8 on; F_SEAL_* as numbers, since
# the fcntl module has them only where it was built with them.
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8
