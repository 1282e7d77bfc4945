// Filters of what this process executes: NVIDIA's drivers are refused to a container without a GPU (hook/runtime/refused.py), an entry
// that the guard's own filter cannot see to a guarded one (hook/runtime/entry32.py).
#include "client.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

// Of nvc/guard/refusal.py, which says what it refuses (tests/contract/test_client_runtime.py).
static struct sock_filter FILTER[] = {
    { 0x20, 0, 0, 0x00000004 },  { 0x15, 4, 0, 0xc000003e },  { 0x15, 8, 0, 0x40000003 },  { 0x15, 11, 0, 0xc00000b7 },
    { 0x15, 14, 0, 0x40000028 }, { 0x06, 0, 0, 0x0005000d },  { 0x20, 0, 0, 0x00000000 },  { 0x54, 0, 0, 0xbfffffff },
    { 0x15, 14, 0, 0x00000010 }, { 0x15, 13, 0, 0x00000202 }, { 0x06, 0, 0, 0x7fff0000 },  { 0x20, 0, 0, 0x00000000 },
    { 0x54, 0, 0, 0xbfffffff },  { 0x15, 9, 0, 0x00000036 },  { 0x06, 0, 0, 0x7fff0000 },  { 0x20, 0, 0, 0x00000000 },
    { 0x54, 0, 0, 0xbfffffff },  { 0x15, 5, 0, 0x0000001d },  { 0x06, 0, 0, 0x7fff0000 },  { 0x20, 0, 0, 0x00000000 },
    { 0x54, 0, 0, 0xbfffffff },  { 0x15, 1, 0, 0x00000036 },  { 0x06, 0, 0, 0x7fff0000 },  { 0x20, 0, 0, 0x00000018 },
    { 0x54, 0, 0, 0x3fff00ff },  { 0x15, 24, 0, 0x00380027 }, { 0x15, 23, 0, 0x00140028 }, { 0x15, 22, 0, 0x00100029 },
    { 0x15, 21, 0, 0x0020002a }, { 0x15, 20, 0, 0x0020002b }, { 0x15, 19, 0, 0x0030002b }, { 0x15, 18, 0, 0x001c0034 },
    { 0x15, 17, 0, 0x00180035 }, { 0x15, 16, 0, 0x00200039 }, { 0x15, 15, 0, 0x00b8004a }, { 0x15, 14, 0, 0x0048004d },
    { 0x15, 13, 0, 0x00380057 }, { 0x15, 12, 0, 0x00400057 }, { 0x15, 11, 0, 0x00280058 }, { 0x15, 10, 0, 0x00300058 },
    { 0x15, 9, 0, 0x0fb8005f },  { 0x15, 8, 0, 0x3c34005f },  { 0x15, 7, 0, 0x001000d3 },  { 0x15, 6, 0, 0x000800d6 },
    { 0x20, 0, 0, 0x00000018 },  { 0x15, 4, 0, 0x30000001 },  { 0x15, 3, 0, 0x30000002 },  { 0x35, 1, 0, 0x00000200 },
    { 0x35, 1, 0, 0x00000008 },  { 0x06, 0, 0, 0x7fff0000 },  { 0x06, 0, 0, 0x0005000d },
};

int refusal_install (void)
{
    struct sock_fprog program = { sizeof FILTER / sizeof FILTER[0], FILTER };
    if (syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0)
        return 0;
    // A caller without CAP_SYS_ADMIN is a user of the host's; a kernel without such filters guards nothing.
    return errno == EACCES || errno == EINVAL || errno == ENOSYS ? 0 : -1;
}

int entry32_close (void)
{
#if defined __x86_64__
    // Of hook/runtime/entry32.py (the same test).
    static struct sock_filter entry32[] = {
        { 0x20, 0, 0, 0x00000004 }, { 0x15, 0, 3, 0x40000003 }, { 0x20, 0, 0, 0x00000000 },
        { 0x15, 0, 1, 0x0000005a }, { 0x06, 0, 0, 0x00050026 }, { 0x06, 0, 0, 0x7fff0000 },
    };
    struct sock_fprog program = { sizeof entry32 / sizeof entry32[0], entry32 };
    return syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? 0 : -1;
#else
    return 0;
#endif
}
