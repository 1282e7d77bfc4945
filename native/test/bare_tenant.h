/* A tenant of the guard without a thread, listeners or a driver, for tests that call single functions about it. */
#ifndef NVC_TEST_BARE_TENANT_H
#define NVC_TEST_BARE_TENANT_H

#include "guard/edges.h"
#include "guard/guard_private.h"
#include "guard/host.h"
#include "guard/tenant.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* tenant, guard: all zero; guard may be NULL. The caller of a function about the tenant takes its lock first. */
static inline void bare_begin (struct tenant *tenant, struct guard *guard)
{
    tenant->process_end = TENANT_PROCESSES; /* tests enter processes at places of their own choice */
    if (guard != NULL) {
        pthread_mutex_init (&guard->lock, NULL);
        pthread_mutex_init (&guard->driver_usage_lock, NULL);
        pthread_mutex_init (&guard->probe_lock, NULL);
        guard->contention = guard->event_descriptor = guard->changed_descriptor = guard->closing[0] = guard->closing[1] = -1;
        guard->waits_descriptor = -1;
    }
    pthread_mutex_init (&tenant->lock, NULL);
    pthread_mutex_init (&tenant->listeners_lock, NULL);
    tenant->receiver.listener = -1;
    edges_begin (&tenant->edges);
    tenant->guard = guard;
    tenant->is_watched = guard == NULL; /* no process is to hear that it waits */
    tenant->abi = rm_abi_find ("580.159.04");
    tenant->rm = rm_create (tenant->abi, RM_POSTURE_GUARD, &guard_host, tenant);
    tenant->epoll = epoll_create1 (0);
}

static inline struct tenant *bare_tenant (struct guard *guard)
{
    struct tenant *tenant = calloc (1, sizeof (*tenant));

    bare_begin (tenant, guard);
    return tenant;
}

/* What bare_begin made. Its processes are the caller's to forget. */
static inline void bare_release (struct tenant *tenant)
{
    rm_destroy (tenant->rm);
    edges_end (&tenant->edges);
    close (tenant->epoll);
}

static inline void bare_end (struct tenant *tenant)
{
    bare_release (tenant);
    free (tenant);
}

#endif
