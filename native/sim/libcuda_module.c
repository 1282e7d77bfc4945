/*
 * Modules and kernels. An image of text lines "sim kernel NAME nanoseconds=N" defines the duration of its kernels; any
 * other image has a kernel of every name, each of 1 us. The grid's size has no effect. Runs in the program's process,
 * on the calling thread, under the library's lock.
 */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NANOSECONDS UINT64_C (1000)
#define LINE "sim kernel "

struct CUfunc_st {
    struct cuda_entry entry;
    struct CUfunc_st *next;
    uint64_t nanoseconds;
    char name[256];
};

struct CUmod_st {
    struct cuda_entry entry;
    struct CUfunc_st *functions;
    bool described;
};

static struct CUfunc_st *add_function (struct CUmod_st *module, const char *name, uint64_t nanoseconds)
{
    struct CUfunc_st *function = calloc (1, sizeof (*function));

    if (function == NULL || !cuda_add_handle (&function->entry, KIND_FUNCTION, NULL)) {
        free (function);
        return NULL;
    }
    snprintf (function->name, sizeof (function->name), "%s", name);
    function->nanoseconds = nanoseconds;
    function->next = module->functions;
    module->functions = function;
    return function;
}

static CUresult describe (struct CUmod_st *module, const char *text)
{
    module->described = true;
    while (*text != '\0') {
        char name[256];
        unsigned long long nanoseconds;
        if (sscanf (text, LINE "%255s nanoseconds=%llu", name, &nanoseconds) != 2)
            return CUDA_ERROR_INVALID_IMAGE;
        if (add_function (module, name, nanoseconds) == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        text += strcspn (text, "\n");
        text += strspn (text, "\n");
    }
    return CUDA_SUCCESS;
}

void cuda_module_release (struct cuda_entry *entry)
{
    struct CUmod_st *module = (struct CUmod_st *) entry;

    cuda_remove (entry);
    while (module->functions != NULL) {
        struct CUfunc_st *function = module->functions;
        module->functions = function->next;
        cuda_remove (&function->entry);
        free (function);
    }
    free (module);
}

CUresult cuModuleLoadDataEx (CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    CUcontext context;

    (void) count;
    (void) options;
    (void) values;
    CUDA_ENTER_CONTEXT (context);
    if (module == NULL || image == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct CUmod_st *made = calloc (1, sizeof (*made));
    if (made == NULL || !cuda_add_handle (&made->entry, KIND_MODULE, context)) {
        free (made);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    CUresult result = strncmp (image, LINE, strlen (LINE)) == 0 ? describe (made, image) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        cuda_module_release (&made->entry);
    else
        *module = made;
    return CUDA_LEAVE (result);
}

CUresult cuModuleLoadData (CUmodule *module, const void *image) { return cuModuleLoadDataEx (module, image, 0, NULL, NULL); }

CUresult cuModuleUnload (CUmodule module)
{
    CUDA_ENTER ();
    if (cuda_find (module, KIND_MODULE) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    cuda_module_release (&module->entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuModuleGetFunction (CUfunction *function, CUmodule module, const char *name)
{
    struct CUfunc_st *found;

    CUDA_ENTER ();
    if (function == NULL || name == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (cuda_find (module, KIND_MODULE) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    for (found = module->functions; found != NULL && strcmp (found->name, name) != 0;)
        found = found->next;
    if (found == NULL && module->described)
        return CUDA_LEAVE (CUDA_ERROR_NOT_FOUND);
    if (found == NULL)
        found = add_function (module, name, DEFAULT_NANOSECONDS);
    *function = found;
    return CUDA_LEAVE (found != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

uint64_t cuda_function_nanoseconds (CUfunction function) { return function->nanoseconds; }
