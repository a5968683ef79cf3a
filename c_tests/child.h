/* Running a test's body in a child process, for what would not leave the test's own as it was. */
#ifndef SMP_TEST_CHILD_H
#define SMP_TEST_CHILD_H

#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a child that does so ends with: 0 to 255 its status, 256 and more a signal, -1: it cannot be told. */
static inline int run(int (*body)(void))
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(body());
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

#endif
