/* See containers.h. */
#include "containers.h"

#include <errno.h>

const struct container *containers_find (const struct containers *self, pid_t pid)
{
    for (unsigned i = 0; i < self->count; i++)
        if (self->list[i].pid == pid)
            return &self->list[i];
    return NULL;
}

void containers_drop (struct containers *self, pid_t pid)
{
    const struct container *found = containers_find (self, pid);
    struct container gone;

    if (found == NULL)
        return;
    pthread_mutex_lock (&self->lock);
    gone = *found;
    self->list[found - self->list] = self->list[--self->count];
    pthread_mutex_unlock (&self->lock);
    container_close (&gone);
}

int containers_add (struct containers *self, pid_t pid, uint64_t start_time)
{
    const struct container *known = containers_find (self, pid);
    struct container made;
    int error;

    if (known != NULL && known->start_time == start_time)
        return -EEXIST;
    if (known != NULL) /* it has ended: another process has the number */
        containers_drop (self, pid);
    if (self->count == CONTAINERS_MOST)
        return -E2BIG;
    error = container_open (&made, pid, start_time);
    if (error != 0)
        return error;
    pthread_mutex_lock (&self->lock);
    self->list[self->count++] = made;
    pthread_mutex_unlock (&self->lock);
    return 0;
}

int containers_remove (struct containers *self, pid_t pid, const struct container_process *known, unsigned count)
{
    const struct container *found = containers_find (self, pid);

    if (found == NULL)
        return -ENOENT;
    if (container_is_left (found, known, count))
        return -EBUSY;
    containers_drop (self, pid);
    return 0;
}

bool containers_have (const void *of, pid_t pid)
{
    struct containers *self = (struct containers *) of; /* the lock alone is changed */
    bool has = false;

    pthread_mutex_lock (&self->lock);
    for (unsigned i = 0; i < self->count && !has; i++)
        has = container_has (&self->list[i], pid);
    pthread_mutex_unlock (&self->lock);
    return has;
}

bool containers_own (const void *of, pid_t pid, pid_t thread, uint64_t mount)
{
    struct containers *self = (struct containers *) of; /* the lock alone is changed */
    bool owns = false;

    pthread_mutex_lock (&self->lock);
    for (unsigned i = 0; i < self->count && !owns; i++)
        owns = container_owns (&self->list[i], pid, thread, mount);
    pthread_mutex_unlock (&self->lock);
    return owns;
}

const char *containers_end (const struct containers *self, const struct container_process *known, unsigned count)
{
    const char *used = "its processes";

    for (unsigned i = self->count; i-- > 0;)
        used = container_end (&self->list[i], known, count);
    return used;
}

bool containers_are_left (const struct containers *self, const struct container_process *known, unsigned count)
{
    for (unsigned i = 0; i < self->count; i++)
        if (container_is_left (&self->list[i], known, count))
            return true;
    return false;
}

void containers_copied (struct containers *self) { pthread_mutex_init (&self->lock, NULL); }
