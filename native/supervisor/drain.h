/*
 * A listener that nothing is to answer is not closed while a process has its filter: the kernel would answer ENOSYS, and the process
 * would run on unguarded. Each process that makes an announced call is ended instead.
 */
#ifndef NVC_SUPERVISOR_DRAIN_H
#define NVC_SUPERVISOR_DRAIN_H

/* Until no process is left that has the filter. */
void drain (int listener);
/* The same in a process of its own, which is no child. Where that cannot be started, in this one. */
void drain_apart (int listener);

#endif
