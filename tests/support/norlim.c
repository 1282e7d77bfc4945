/* Preloaded into crun 1.8 on machines whose root lacks CAP_SYS_RESOURCE: raising a hard limit answers EPERM there, and crun
   takes that for the end. The limit is not needed: since Linux 5.11 BPF memory is charged to the memory cgroup. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit (__rlimit_resource_t resource, const struct rlimit *limit)
{
    long result = syscall (SYS_prlimit64, 0, resource, limit, 0);
    return result < 0 && errno == EPERM ? 0 : (int) result;
}

int setrlimit64 (__rlimit_resource_t resource, const struct rlimit64 *limit)
{
    long result = syscall (SYS_prlimit64, 0, resource, limit, 0);
    return result < 0 && errno == EPERM ? 0 : (int) result;
}

int prlimit (pid_t pid, enum __rlimit_resource resource, const struct rlimit *limit, struct rlimit *old)
{
    long result = syscall (SYS_prlimit64, pid, resource, limit, old);
    return result < 0 && errno == EPERM && limit != NULL ? 0 : (int) result;
}
