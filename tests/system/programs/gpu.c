/* What Gpu.java calls: the driver, opened by name. */
#include <dlfcn.h>
#include <jni.h>
#include <stddef.h>

static int (*allocate) (unsigned long long *, size_t), (*release) (unsigned long long);

JNIEXPORT jint JNICALL Java_Gpu_begin (JNIEnv *env, jclass type)
{
    void *cuda = dlopen ("libcuda.so.1", RTLD_NOW), *context;
    int (*init) (unsigned), (*retain) (void **, int), (*set) (void *);

    if (cuda == NULL)
        return -1;
    init = dlsym (cuda, "cuInit");
    retain = dlsym (cuda, "cuDevicePrimaryCtxRetain");
    set = dlsym (cuda, "cuCtxSetCurrent");
    allocate = dlsym (cuda, "cuMemAlloc_v2");
    release = dlsym (cuda, "cuMemFree_v2");
    if (init (0) != 0 || retain (&context, 0) != 0)
        return -2;
    return set (context);
}

JNIEXPORT jlong JNICALL Java_Gpu_take (JNIEnv *env, jclass type, jlong bytes)
{
    unsigned long long address;
    int result = allocate (&address, (size_t) bytes);

    return result == 0 ? (jlong) address : -result;
}

JNIEXPORT jint JNICALL Java_Gpu_give (JNIEnv *env, jclass type, jlong address) { return release ((unsigned long long) address); }
