/* See privsep.h. Runs in every thread of the supervisor: `lock` keeps a request and its reply together. */
#include "privsep.h"
#include "process.h"

#include "supervisor/channel.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

void privsep_begin (struct privsep *self, int socket)
{
    self->socket = socket;
    pthread_mutex_init (&self->lock, NULL);
}

void privsep_end (struct privsep *self)
{
    if (self->socket >= 0)
        close (self->socket);
    pthread_mutex_destroy (&self->lock);
}

/* files: exactly `count` come with a reply that is no error. */
static int ask (struct privsep *self, const struct privsep_request *request, struct privsep_reply *reply, int *files,
                unsigned count)
{
    int found[CHANNEL_DESCRIPTORS];
    unsigned used = CHANNEL_DESCRIPTORS;
    ssize_t size = -1;

    if (self->socket < 0)
        return -EPIPE;
    pthread_mutex_lock (&self->lock);
    if (channel_send (self->socket, request, sizeof (*request), NULL, 0))
        size = channel_receive (self->socket, reply, sizeof (*reply), found, &used);
    pthread_mutex_unlock (&self->lock);
    if (size < (ssize_t) PRIVSEP_REPLY_LEAST)
        return -EPIPE;
    if (reply->result == 0 && used == count) {
        memcpy (files, found, count * sizeof (*files));
        return 0;
    }
    for (unsigned i = 0; i < used; i++)
        close (found[i]);
    return reply->result < 0 ? reply->result : -EPROTO;
}

static struct privsep_request about (enum privsep_operation operation, const struct process *process)
{
    return (struct privsep_request) { .operation = operation,
                                      .pid = process != NULL ? process->pid : 0,
                                      .start_time = process != NULL ? process->start_time : 0 };
}

int privsep_process (struct privsep *self, pid_t thread, struct privsep_process *found)
{
    struct privsep_request request = { .operation = PRIVSEP_PROCESS, .thread = thread };
    struct privsep_reply reply;
    int files[2], result = ask (self, &request, &reply, files, 2);

    if (result != 0)
        return result;
    *found = (struct privsep_process) { .pid = reply.pid, .start_time = reply.start_time, .pidfd = files[0], .memory = files[1] };
    found->shares_memory = reply.state != 0;
    if (reply.count <= PRIVSEP_LEVELS)
        found->levels = reply.count;
    for (unsigned i = 0; i < found->levels; i++)
        found->numbers[i] = (uint32_t) reply.numbers[i];
    return 0;
}

int privsep_file (struct privsep *self, const struct process *process, int number, bool is_named, enum rm_node *node)
{
    struct privsep_request request = about (is_named ? PRIVSEP_NAMED : PRIVSEP_FILE, process);
    struct privsep_reply reply;
    int file, result;

    request.number = number;
    result = ask (self, &request, &reply, &file, 1);
    *node = result == 0 ? (enum rm_node) reply.node : RM_NODE_OTHER;
    return result == 0 ? file : result;
}

int privsep_files (struct privsep *self, const struct process *process, int32_t *numbers)
{
    struct privsep_request request = about (PRIVSEP_FILES, process);
    struct privsep_reply reply;
    int result = ask (self, &request, &reply, NULL, 0);

    if (result != 0 || reply.count > PRIVSEP_NUMBERS)
        return result != 0 ? result : -EPROTO;
    memcpy (numbers, reply.numbers, reply.count * sizeof (*numbers));
    return (int) reply.count;
}

int privsep_maps (struct privsep *self, const struct process *process)
{
    struct privsep_request request = about (PRIVSEP_MAPS, process);
    struct privsep_reply reply;
    int file, result = ask (self, &request, &reply, &file, 1);

    return result == 0 ? file : result;
}

int privsep_syscall (struct privsep *self, const struct process *process, pid_t thread, enum privsep_thread_state *state,
                     uint64_t arguments[4])
{
    struct privsep_request request = about (PRIVSEP_SYSCALL, process);
    struct privsep_reply reply;
    int result;

    request.thread = thread;
    result = ask (self, &request, &reply, NULL, 0);
    if (result == 0) {
        *state = (enum privsep_thread_state) reply.state;
        memcpy (arguments, reply.arguments, sizeof (reply.arguments));
    }
    return result;
}

int privsep_space (struct privsep *self, const struct process *process, pid_t thread, int files[2])
{
    struct privsep_request request = about (PRIVSEP_SPACE, process);
    struct privsep_reply reply;

    request.thread = thread;
    return ask (self, &request, &reply, files, 2);
}

bool privsep_is_ending (struct privsep *self, const struct process *process)
{
    struct privsep_request request = about (PRIVSEP_ENDING, process);
    struct privsep_reply reply;

    return ask (self, &request, &reply, NULL, 0) == 0 && reply.state != 0;
}

int privsep_kill (struct privsep *self, const struct process *process)
{
    struct privsep_request request = about (PRIVSEP_KILL, process);
    struct privsep_reply reply;

    return ask (self, &request, &reply, NULL, 0);
}

int privsep_device (struct privsep *self, int number)
{
    struct privsep_request request = { .operation = PRIVSEP_DEVICE, .number = number };
    struct privsep_reply reply;
    int file, result = ask (self, &request, &reply, &file, 1);

    return result == 0 ? file : result;
}
