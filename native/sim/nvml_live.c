/* Queries of the simulated resource manager, each with a client of its own: no file stays open. Runs in the program's
 * process, on the calling thread. */
#include "nvml_live.h"

#include "device.h"
#include "libcuda_rm.h"
#include "versions.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEVICE = 0xa55a0020, SUBDEVICE = 0xa55a0030, ESCAPE_REGISTER_FD = 0xc9 };
#define CONTROL_GET_PIDS 0x2080018du
#define CONTROL_GET_PID_INFO 0x2080018eu
#define CONTROL_SAMPLES 0x20802096u
enum { FB_HEAP_FREE = 0x16, FB_TOTAL = 0x8, FB_HEAP_SIZE = 0x9 };
/* The query is for processes with an object of this class: a channel group. */
#define CLASS_CHANNEL_GROUP 0xa06cu
#define ENTRIES 200

struct pids {
    uint32_t kind, id, count, pids[NVML_LIVE_PROCESSES];
};
struct pid_info {
    uint32_t count, pad;
    struct {
        uint32_t pid, index, result, pad;
        uint64_t private_bytes, owned_bytes, numbers[3];
        uint32_t subscription[4];
    } entries[ENTRIES];
};
_Static_assert (sizeof (struct pids) == 3812 && sizeof (struct pid_info) == 14408, "the driver's sizes");

/* The last 72, each a time stamp and the engines; a part is 1/10000. */
enum { SAMPLES = 72, SAMPLES_HEAD = 16, SAMPLE_MOST = 8 + 6 * 128 };
#define SECOND_NS UINT64_C (1000000000)
struct samples {
    uint32_t type, size, count, tracker;
    uint8_t samples[SAMPLES * SAMPLE_MOST];
};

struct session {
    struct rm_client client;
    int node;
};

static void leave (struct session *session)
{
    if (session->node >= 0)
        close (session->node);
    rm_client_close (&session->client);
}

static bool enter (const struct machine_gpu *gpu, struct session *session)
{
    uint8_t uuid[16];

    session->node = -1;
    if (!rm_parse_uuid (gpu->uuid, uuid) || !rm_client_open (&session->client, nvml_state.machine.driver))
        return false;
    session->node = rm_open_node (gpu->node);
    int control = session->client.control;
    if (session->node >= 0)
        rm_call (session->node, ESCAPE_REGISTER_FD, &control, sizeof (control));
    if (session->node >= 0 && rm_attach_gpu (&session->client, uuid, DEVICE, SUBDEVICE))
        return true;
    leave (session);
    return false;
}

bool nvml_live_memory (const struct machine_gpu *gpu, struct nvml_live *live)
{
    struct rm_fb_info info = { .count = 3,
                               .entries = { { .index = FB_HEAP_FREE }, { .index = FB_TOTAL }, { .index = FB_HEAP_SIZE } } };
    struct session session;

    if (!enter (gpu, &session))
        return false;
    uint32_t status = rm_ask_memory (&session.client, SUBDEVICE, &info);
    leave (&session);
    live->free = (uint64_t) info.entries[0].kibibytes << 10;
    live->total = (uint64_t) info.entries[1].kibibytes << 10;
    live->heap = (uint64_t) info.entries[2].kibibytes << 10;
    return status == RM_STATUS_OK;
}

bool nvml_live_busy (const struct machine_gpu *gpu, uint64_t *now, uint64_t *busy)
{
    struct sim_busy told = { .status = RM_STATUS_SYSTEM };
    struct session session;

    if (!enter (gpu, &session))
        return false;
    bool is_told = rm_parse_uuid (gpu->uuid, told.uuid) && ioctl (session.client.control, SIM_BUSY, &told) == 0;
    leave (&session);
    *now = told.now_ns;
    *busy = told.busy_ns;
    return is_told && told.status == RM_STATUS_OK;
}

bool nvml_live_processes (const struct machine_gpu *gpu, struct nvml_live_process *processes, unsigned int *count)
{
    struct pids pids = { .kind = 0, .id = CLASS_CHANNEL_GROUP };
    struct pid_info info = { .count = 0 };
    struct session session;

    if (!enter (gpu, &session))
        return false;
    uint32_t status = rm_control (&session.client, SUBDEVICE, CONTROL_GET_PIDS, &pids, sizeof (pids));
    *count = pids.count < NVML_LIVE_PROCESSES ? pids.count : NVML_LIVE_PROCESSES;
    for (uint32_t done = 0; status == RM_STATUS_OK && done < *count; done += info.count) {
        info.count = *count - done < ENTRIES ? *count - done : ENTRIES;
        for (uint32_t i = 0; i < info.count; i++) {
            memset (&info.entries[i], 0, sizeof (info.entries[i]));
            info.entries[i].pid = pids.pids[done + i];
        }
        status = rm_control (&session.client, SUBDEVICE, CONTROL_GET_PID_INFO, &info, sizeof (info));
        for (uint32_t i = 0; i < info.count; i++)
            processes[done + i] = (struct nvml_live_process) { pids.pids[done + i],
                                                               info.entries[i].private_bytes + info.entries[i].owned_bytes };
    }
    leave (&session);
    return status == RM_STATUS_OK;
}

bool nvml_live_utilization (const struct machine_gpu *gpu, unsigned int *percent)
{
    struct samples params = { .type = 2 }; /* NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL */
    struct session session;
    struct timespec now;
    uint64_t parts = 0, count = 0;

    if (!enter (gpu, &session))
        return false;
    uint32_t size = version_size (VERSION_SAMPLES, session.client.version);
    uint32_t each = (size - SAMPLES_HEAD) / SAMPLES, engines = session.client.version >= 550 ? 6 : 4;
    params.size = size - SAMPLES_HEAD;
    uint32_t status = rm_control (&session.client, SUBDEVICE, CONTROL_SAMPLES, &params, size);
    leave (&session);
    clock_gettime (CLOCK_MONOTONIC, &now);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        const uint8_t *at = params.samples + (size_t) i * each;
        uint64_t when;
        uint32_t part;

        memcpy (&when, at, sizeof (when));
        memcpy (&part, at + sizeof (when) + (each - sizeof (when)) / engines, sizeof (part)); /* gr, after fb */
        if (when + SECOND_NS > (uint64_t) now.tv_sec * SECOND_NS + (uint64_t) now.tv_nsec) {
            parts += part;
            count++;
        }
    }
    *percent = count != 0 ? (unsigned int) (parts / count / 100) : 0;
    return status == RM_STATUS_OK;
}
