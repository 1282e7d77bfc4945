/*
 * Programs and libraries that are linked with the driver, or define functions of its names. -DUSE: calls them.
 * -DTRACER: counts calls and forwards them. -DSTUB: replaces a missing driver. -DMAIN: the program; arguments:
 * libraries to open with RTLD_LOCAL, whose `use` is called; none: its own.
 */
#include "shim/api/abi.h"

#include <dlfcn.h>
#include <stdio.h>

#define API __attribute__ ((visibility ("default")))

API CUresult cuMemAllocManaged (CUdeviceptr *pointer, size_t bytes, unsigned int flags);
API CUresult cuGetProcAddress (const char *symbol, void **function, int version, uint64_t flags);
API void use (void);

#ifdef TRACER
CUresult cuMemAllocManaged (CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    CUresult (*next) (CUdeviceptr *, size_t, unsigned int);
    *(void **) &next = dlsym (RTLD_NEXT, "cuMemAllocManaged");
    CUresult result = next (pointer, bytes, flags);
    printf ("traced %d\n", result);
    return result;
}
#endif

#ifdef STUB
CUresult cuMemAllocManaged (CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    (void) pointer, (void) bytes, (void) flags;
    return 77;
}

CUresult cuGetProcAddress (const char *symbol, void **function, int version, uint64_t flags)
{
    (void) symbol, (void) version, (void) flags;
    *function = (void *) cuMemAllocManaged;
    return CUDA_SUCCESS;
}
#endif

#ifdef USE
void fake_fail (CUresult result, int refused) __attribute__ ((weak, visibility ("default")));
void fake_current (int device) __attribute__ ((weak, visibility ("default")));

void use (void)
{
    CUdeviceptr pointer = 0;
    CUresult (*found) (CUdeviceptr *, size_t, unsigned int) = NULL;
    if (&fake_current != NULL)
        fake_current (0);
    for (int round = 0; round < 3; round++) {
        if (round == 2 && &fake_fail != NULL)
            fake_fail (CUDA_ERROR_UNKNOWN, 1);
        printf ("linked %d\n", cuMemAllocManaged (&pointer, 4096, CU_MEM_ATTACH_GLOBAL));
        CUresult result = cuGetProcAddress ("cuMemAllocManaged", (void **) &found, 12000, 0);
        printf ("asked %d %d\n", result, found != NULL ? found (&pointer, 4096, CU_MEM_ATTACH_GLOBAL) : -1);
    }
}
#endif

#ifdef MAIN
int main (int count, char **words)
{
#ifdef USE
    if (count == 1)
        use ();
#endif
    for (int i = 1; i < count; i++) {
        void *library = dlopen (words[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            printf ("%s\n", dlerror ());
            return 1;
        }
        void (*call) (void);
        *(void **) &call = dlsym (library, "use");
        call ();
    }
    return 0;
}
#endif
