/* Which processes have a row in the usage page (supervisor/prober_usage.c), with answers of the driver made by hand. */
#include "guard/clock.h"
#include "rm/nv_numbers.h"
#include "supervisor/prober.h"
#include "tap.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct prober prober = { .connection = -1, .epoll = -1 };
static struct usage_page page;
static struct traced traced = { .traced_ns = 1000 };
static uint32_t listed_count = 1;
static unsigned questions;
static bool is_answered = true;
static uint32_t ended; /* that was on the engine since the last question */

uint32_t driver_client_control (const struct driver_client *self, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    (void) self;
    (void) object;
    (void) size;
    if (command == NV2080_CTRL_CMD_GPU_GET_PIDS) {
        NV2080_CTRL_GPU_GET_PIDS_PARAMS *listed = params;

        listed->pidTblCount = listed_count;
        for (uint32_t i = 0; i < listed_count; i++)
            listed->pidTbl[i] = 11 + i;
    }
    return NV_OK;
}

long driver_usage_ask (const struct driver_client *client, int gpu, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *answer,
                       const uint32_t *pids, unsigned count, struct process_usage *found)
{
    (void) client;
    (void) gpu;
    (void) answer;
    (void) pids;
    memset (found, 0, count * sizeof (*found));
    questions++;
    return is_answered ? 0 : -EIO;
}

void prober_take_samples (struct prober *self, unsigned gpu)
{
    (void) gpu;
    self->computed_count = 0;
}

const struct traced *prober_take_trace (struct prober *self, unsigned gpu)
{
    (void) gpu;
    self->on_count = 1;
    self->on[0].pid = ended;
    self->on[0].ns = 600;
    return &traced;
}

static uint64_t had (uint32_t pid)
{
    prober_publish_usage (&prober);
    if (pread (prober.page, &page, sizeof (page), 0) != sizeof (page))
        return 0;
    for (uint32_t i = 0; i < page.copies[page.index].head.row_count; i++)
        if (page.copies[page.index].rows[i].pid == pid)
            return page.copies[page.index].rows[i].traced_ns;
    return 0;
}

int main (void)
{
    prober.page = memfd_create ("page", MFD_CLOEXEC);
    if (prober.page < 0 || ftruncate (prober.page, sizeof (page)) != 0)
        return 1;
    prober.client.gpu_count = 1;
    ended = 11;
    tap_ok (had (11) == 600, "a process that is there has what the trace says");
    ended = 12;
    tap_ok (had (12) == 600, "and so has one that was on the engine and has ended: no other is to have its time");

    ended = 11;
    is_answered = false;
    (void) had (11);
    is_answered = true;
    tap_ok (had (11) == 1800, "what it had while the driver did not answer about processes is counted, too");

    listed_count = 240;
    ended = 11;
    questions = 0;
    prober.called_ns = guard_now ();
    (void) had (11);
    tap_ok (questions == 10, "few processes a question while a tenant calls the driver, whose lock each question takes");
    questions = 0;
    prober.called_ns -= 2000000000u;
    (void) had (11);
    tap_ok (questions == 3 && page.copies[page.index].head.row_count == 240, "more, and all of them, while none does");
    return tap_done ();
}
