/* Giving back anything that the registers know, by its kind. */
#include "libcuda.h"

#include <stdlib.h>

void cuda_release (struct cuda_entry *entry)
{
    switch (entry->kind) {
    case KIND_MEMORY:
        cuda_memory_release (entry);
        break;
    case KIND_SMALL:
        cuda_small_free (entry);
        break;
    case KIND_MODULE:
        cuda_module_release (entry);
        break;
    default: /* nothing behind it */
        cuda_remove (entry);
        free (entry);
        break;
    }
}
