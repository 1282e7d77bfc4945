/*
 * Controls with a pointer to a list in their params, and those of which the driver reads a whole struct whatever size
 * the call gives: rmapi/embedded_param_copy.c, and rmapi_deprecated_control.c, which has more of them from 550 on. The
 * pointers are dereferenced in the calling process, without a check of the process that made the object. Runs as
 * manager.c, under manager->lock.
 */
#include "manager_state.h"

#include <stdlib.h>

#define SIZED 9999 /* every release checks the size */

struct list_row {
    uint32_t number;
    int unsized;       /* the first release that ignores the size */
    uint32_t size;     /* of the params */
    uint32_t element;  /* bytes; 0: no list */
};

/* A count at 0, and the pointer at 8. */
static const struct list_row rows[] = {
    { 0x00000101, 0, 40, 0 },   /* SYSTEM_GET_BUILD_VERSION: three strings, which control_build_version writes */
    { 0x00410110, SIZED, 16, 8 }, /* GET_SURFACE_INFO */
    { 0x00801b01, 550, 16, 1 }, /* MSENC_GET_CAPS */
    { 0x20800802, 0, 16, 8 },   /* BIOS_GET_INFO */
    { 0x20801301, 550, 16, 8 }, /* FB_GET_INFO */
    { 0x20801802, 0, 16, 8 },   /* BUS_GET_INFO */
};

#define MOST_ELEMENTS 4096

static const struct list_row *row_of (uint32_t number)
{
    for (size_t i = 0; i < sizeof (rows) / sizeof (rows[0]); i++) {
        if (rows[i].number == number)
            return &rows[i];
    }
    return NULL;
}

uint32_t control_params_size (const struct request *request)
{
    const struct list_row *row = row_of (get32 (request->head, 8));

    return row != NULL && request->manager->release >= row->unsized ? row->size : get32 (request->head, 24);
}

bool control_take_list (struct request *request)
{
    const struct list_row *row = row_of (get32 (request->head, 8));

    if (row == NULL || row->element == 0 || request->params == NULL || request->params_size != row->size)
        return true;
    uint32_t count = get32 (request->params, 0);
    request->list_address = get64 (request->params, 8);
    if (count == 0 || request->list_address == 0)
        return true;
    if (count > MOST_ELEMENTS)
        return false;
    request->list_size = count * row->element;
    request->list = malloc (request->list_size);
    return request->list != NULL &&
           request->caller->read (request->caller->context, request->list_address, request->list, request->list_size);
}
