#include "share.h"

/* A way round every wrapper that the driver's own tools use. It stays open; where there is a region it is counted
 * there. */
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
