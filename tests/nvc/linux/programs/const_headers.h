/* The headers whose constants and layouts nvc.linux.const has. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/inotify.h>
#include <linux/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#define sched_param linux_sched_param /* sched.h has it, too */
#include <linux/sched/types.h>
#undef sched_param
#include <linux/seccomp.h>
#include <linux/securebits.h>
