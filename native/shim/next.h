/* The functions that this library's wrappers stand before. */
#ifndef NVC_SHIM_NEXT_H
#define NVC_SHIM_NEXT_H

/*
 * close: the next one in the program's order of libraries, because libc's is a cancellation point and other wrappers
 * may follow. ioctl: the next one too, because emulators of devices wrap it. Both are looked up once, at the first
 * call, with dlsym where the program has it; the system call serves otherwise. poll: as close. mmap, munmap and dup go to the kernel at
 * once: an allocator may be what calls them, and dlsym may allocate.
 */
int next_close (int descriptor);
/* Function pointers as numbers, for the fast path: 0 not looked for yet, 1 there is none. */
extern unsigned long next_close_function, next_ioctl_function, next_poll_function;
int next_ioctl (int descriptor, unsigned long request, void *argument);
struct pollfd;
int next_poll (struct pollfd *descriptors, unsigned long count, int milliseconds);

/* A symbol of the program by name, NULL without dlsym. */
void *next_symbol (const char *name);

/* The kernel's answer as libc's functions say it. */
long next_answer (long result);

#endif
