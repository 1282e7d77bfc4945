/* cuGetExportTable. Runs as array.c. */
#include "share.h"

/* The driver's private tables, which its own tools use, bypass every wrapper. They stay available, and calls are
 * counted in the region where there is one. */
CUresult cuGetExportTable (const void **table, const CUuuid *identity)
{
    uint64_t signals;
    struct api *api = share_is_active () ? share_lock (&signals) : NULL;
    if (api != NULL && api->attached)
        region_note (&api->region, REGION_NOTE_EXPORT_TABLE, 0);
    if (api != NULL)
        share_unlock (api, signals);
    return NEXT (cuGetExportTable) (table, identity);
}
