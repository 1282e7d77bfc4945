/*
 * Admission of a container by the agent (DIRECTORY/admit, nvc/agent/admission.py): the acceptor that has its listener asks, and becomes the
 * monitor of its tenant, or refuses it. Runs in the acceptor.
 */
#ifndef NVC_SUPERVISOR_ADMISSION_H
#define NVC_SUPERVISOR_ADMISSION_H

#include "monitor.h"
#include "runtime_message.h"
#include "successor.h"

/* A container's first listener, or one that no monitor took: returns when the tenant is over, or the listener is another process's, or
 * the container is refused. The exit status. */
int admission_run (struct monitor *self, struct runtime_message *message, struct successor *successor);
/* SIGKILL to the message's process. The listener is kept until no process is left that could be answered ENOSYS; none is: nothing
 * is done. why: for the log. */
void admission_refuse (const struct monitor *self, const struct runtime_message *message, const char *why);
/* For an agent that finds this process gone, and the listener with it (nvc/agent/admission.py): DIRECTORY/pending/PID says which process
 * is to be ended. message NULL: none. */
void admission_note_pending (const struct monitor *self, const struct runtime_message *message);

#endif
