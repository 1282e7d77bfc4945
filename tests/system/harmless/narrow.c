/* A 32-bit program on a machine that has no 32-bit headers: only what libc's own symbols give. */
int puts (const char *text);
void exit (int status) __attribute__ ((noreturn));
void _start (void) __attribute__ ((force_align_arg_pointer));

void _start (void)
{
    puts ("narrow");
    exit (0);
}
