/* Release of a context's registered objects, by their kind. Runs in the program's process, on the calling thread, under
 * the library's lock. */
#include "libcuda_pool.h"

#include <stdlib.h>

CUresult cuda_release (struct cuda_entry *entry)
{
    CUresult result = CUDA_SUCCESS;

    switch (entry->kind) {
    case KIND_MEMORY:
        result = cuda_memory_release (entry);
        break;
    case KIND_SMALL:
        result = cuda_small_free (entry);
        break;
    case KIND_MANAGED:
        cuda_managed_release (entry);
        break;
    case KIND_HOST:
    case KIND_REGISTERED:
        cuda_pinned_release (entry);
        break;
    case KIND_IMPORTED:
        cuda_imported_release (entry);
        break;
    case KIND_POOLED:
        cuda_pool_unback ((struct pooled *) entry);
        ((struct pooled *) entry)->entry.context = NULL;
        cuda_pool_unplace ((struct pooled *) entry);
        break;
    case KIND_ARRAY:
    case KIND_MIPMAP:
        cuda_array_release (entry);
        break;
    case KIND_MODULE:
        cuda_module_release (entry);
        break;
    case KIND_STREAM:
        cuda_capture_drop ((CUstream) entry);
        cuda_remove (entry);
        free (entry);
        break;
    default: /* events have no other resources */
        cuda_remove (entry);
        free (entry);
        break;
    }
    return result;
}
