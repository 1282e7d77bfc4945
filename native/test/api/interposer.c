/*
 * Another library that interposes dlsym, as tracers and sanitizers do. -DNAME=...: the name of its counter. It finds
 * the real one with RTLD_NEXT, or (-DBY_HANDLE) by a handle of libc.
 */
#include <dlfcn.h>

#if defined(__aarch64__)
#define VERSION "GLIBC_2.17"
#else
#define VERSION "GLIBC_2.2.5"
#endif
#define API __attribute__ ((visibility ("default")))

API extern unsigned int NAME;
unsigned int NAME;
API void *dlsym (void *restrict handle, const char *restrict name);

void *dlsym (void *restrict handle, const char *restrict name)
{
    static void *(*real) (void *, const char *);
    NAME++;
    if (real == 0) {
#ifdef BY_HANDLE
        void *libc = dlopen ("libc.so.6", RTLD_NOW);
        *(void **) &real = dlvsym (libc, "dlsym", VERSION);
#else
        *(void **) &real = dlvsym (RTLD_NEXT, "dlsym", VERSION);
#endif
    }
    return real (handle, name);
}
