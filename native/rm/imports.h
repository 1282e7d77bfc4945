/* An import by descriptor, made by a guard's client: there the tenant cannot reach it. */
#ifndef NVC_RM_IMPORTS_H
#define NVC_RM_IMPORTS_H

#include "nv_params.h"
#include "rm.h"

/* The params of the control that imports it once more, into another client. */
union rm_import_params {
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS one;
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS list;
};
/* device: a handle of that client. Returns the control's number. */
uint32_t rm_import_again (const struct rm_source *source, uint32_t device, union rm_import_params *params, uint32_t *size);
/* The handle that the driver picked. */
uint32_t rm_imported (const struct rm_source *source, const union rm_import_params *params);

#endif
