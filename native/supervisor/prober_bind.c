/*
 * See prober.h: the driver's trace of context switches needs CAP_SYS_ADMIN when it is asked for, and none to be read. So a client of its own asks
 * for it while this process is root still, before it reads anything of a tenant. What is left is a mapping for reading: it keeps the open file
 * that the client belongs to, and with it the trace, but no call reaches that client any more.
 */
#include "prober.h"

#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "rm/nvos.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADER_SIZE 4096u
#define RECORDS_SIZE (TRACE_RECORDS * (uint32_t) sizeof (NV_EVENT_BUFFER_FECS_RECORD))
#define SIMPLE 1u /* NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD_SIMPLE */
/* Handles, of GPU n: + 4 n. */
#define HEADER 0xcaf02000u
#define RECORDS 0xcaf02001u
#define BUFFER 0xcaf02002u

static bool make_memory (const struct driver_client *client, uint32_t handle, uint64_t size)
{
    union {
        NV_MEMORY_ALLOCATION_PARAMS params;
        uint8_t room[256]; /* longer from 545 on */
    } memory = { .params = {
                     .size = size, .attr = NVOS32_ATTR_COHERENCY_CACHED, .attr2 = NVOS32_ATTR2_PROTECTION_USER_READ_ONLY } };

    return driver_client_alloc (client, client->client, handle, NV01_MEMORY_DEVICELESS, &memory) == NV_OK;
}

static bool bind_trace (const struct driver_client *client, unsigned gpu)
{
    uint32_t subdevice = DRIVER_HANDLE_SUBDEVICE + client->gpus[gpu].instance;
    NV_EVENT_BUFFER_ALLOC_PARAMETERS buffer = { .recordSize = sizeof (NV_EVENT_BUFFER_FECS_RECORD),
                                                .recordCount = TRACE_RECORDS,
                                                .hSubDevice = subdevice,
                                                .hBufferHeader = HEADER + 4 * gpu,
                                                .hRecordBuffer = RECORDS + 4 * gpu };
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS bind = { .hEventBuffer = BUFFER + 4 * gpu,
                                                               .recordSize = sizeof (NV_EVENT_BUFFER_FECS_RECORD),
                                                               .levelOfDetail = SIMPLE,
                                                               .bAllUsers = 1 };
    NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS enable = { .enable = 1,
                                                             .flags = NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_NEWEST };

    return make_memory (client, HEADER + 4 * gpu, HEADER_SIZE) && make_memory (client, RECORDS + 4 * gpu, RECORDS_SIZE) &&
           driver_client_alloc (client, client->client, BUFFER + 4 * gpu, NV_EVENT_BUFFER, &buffer) == NV_OK &&
           driver_client_control (client, subdevice, NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2, &bind, sizeof (bind)) ==
               NV_OK &&
           driver_client_control (client, BUFFER + 4 * gpu, NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS, &enable, sizeof (enable)) ==
               NV_OK;
}

/* The open file is mapped once. NULL: the driver refuses. */
static const NV_EVENT_BUFFER_FECS_RECORD *map_records (const struct driver_client *client, unsigned gpu, int file)
{
    nv_ioctl_nvos33_parameters_with_fd map = { .params = { .hClient = client->client,
                                                           .hDevice = client->client,
                                                           .hMemory = RECORDS + 4 * gpu,
                                                           .length = RECORDS_SIZE,
                                                           .status = DRIVER_FAILED,
                                                           .flags = NVOS33_FLAGS_ACCESS_READ_ONLY },
                                               .fd = file };
    void *mapped;

    if (ioctl (client->control, NV_REQUEST (NV_ESC_RM_MAP_MEMORY, sizeof (map)), &map) != 0 || map.params.status != NV_OK)
        return NULL;
    mapped = mmap (NULL, RECORDS_SIZE, PROT_READ, MAP_SHARED, file, 0);
    return mapped != MAP_FAILED ? mapped : NULL;
}

void prober_bind_traces (struct prober *self, const char *devices)
{
    struct driver_client client = DRIVER_CLIENT_NONE;
    char path[CHANNEL_PATH + 32];

    snprintf (path, sizeof (path), "%s/nvidiactl", devices);
    client.control = open (path, O_RDWR | O_CLOEXEC);
    if (client.control >= 0 && driver_client_make (&client))
        driver_client_make_devices (&client);
    for (unsigned gpu = 0; gpu < client.gpu_count; gpu++) {
        struct traced *traced = &self->traced[self->traced_gpus];
        /* The first one maps the client's own file. */
        int file = self->traced_gpus == 0 ? client.control : open (path, O_RDWR | O_CLOEXEC);

        if (file >= 0 && bind_trace (&client, gpu))
            traced->records = map_records (&client, gpu, file);
        if (file >= 0 && file != client.control)
            close (file);
        if (traced->records != NULL) {
            memcpy (traced->uuid, client.gpus[gpu].uuid, sizeof (traced->uuid));
            traced->looked_at = guard_now ();
            self->traced_gpus++;
        }
    }
    driver_client_close (&client);
}
