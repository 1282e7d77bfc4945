/* cuGetProcAddress: the symbol of a name for a program built against some version of CUDA. Runs in the program's
 * process, on the calling thread, without a lock. */
#include "libcuda.h"
#include "libcuda_api.h"
#include "libcuda_rows.h"

#include <string.h>

/* The address that dlsym returns too, even if a preloaded library defines the name. */
#define DECLARE_ROW(name, symbol, version, per_thread)                                                                             \
    extern const char row_##symbol[] __asm__ (#symbol) __attribute__ ((visibility ("default")));
CUDA_ROWS (DECLARE_ROW)

struct row {
    const char *name;
    const char *address;
    int version;
    int per_thread;
};
#define DEFINE_ROW(name, symbol, version, per_thread) { #name, row_##symbol, version, per_thread },
static const struct row rows[] = { CUDA_ROWS (DEFINE_ROW) };

/* The newest symbol not above `version`; per_thread: the flavour with a default stream per thread if there is one. NULL
 * with *known false: no such name (names with _v2 and the like are none); true: `version` is too old. */
static const struct row *choose (const char *name, int version, bool per_thread, bool *known)
{
    const struct row *best = NULL;

    *known = false;
    for (size_t i = 0; i < sizeof (rows) / sizeof (*rows); i++) {
        if (strcmp (rows[i].name, name) != 0)
            continue;
        *known = true;
        if (rows[i].version > version || (rows[i].per_thread && !per_thread))
            continue;
        if (best == NULL || rows[i].per_thread > best->per_thread ||
            (rows[i].per_thread == best->per_thread && rows[i].version >= best->version))
            best = &rows[i];
    }
    return best;
}

static CUresult look_up (const char *symbol, void **function, int version, cuuint64_t flags, bool *known)
{
    int newest = 0;

    *known = false;
    if (symbol == NULL || function == NULL || flags > 3 || cuDriverGetVersion (&newest) != CUDA_SUCCESS || version > newest)
        return CUDA_ERROR_INVALID_VALUE;
    const struct row *row = choose (symbol, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, known);
    if (row == NULL)
        return CUDA_ERROR_NOT_FOUND;
    *function = (void *) (uintptr_t) row->address;
    return CUDA_SUCCESS;
}

/* As driver 580: an unknown name does not change `function` here, and is no error in _v2. */
CUresult cuGetProcAddress (const char *symbol, void **function, int version, cuuint64_t flags)
{
    bool known;

    return look_up (symbol, function, version, flags, &known);
}

CUresult cuGetProcAddress_v2 (const char *symbol, void **function, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status)
{
    bool known;
    CUresult result = look_up (symbol, function, version, flags, &known);
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;

    if (result == CUDA_ERROR_NOT_FOUND) {
        *function = NULL;
        found = known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS && status != NULL)
        *status = found;
    return result;
}

/* There are no tables: the real library's result for an unknown id. */
CUresult cuGetExportTable (const void **table, const CUuuid *id)
{
    (void) id;
    if (table == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
