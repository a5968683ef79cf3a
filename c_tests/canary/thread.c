/* A planted race: two threads add to one number. The ThreadSanitizer build must report it, else its silence about the
 * library means nothing. */
#include <smp.h>

#include <pthread.h>
#include <stdio.h>

static uint32_t number;

static void *add(void *argument)
{
    int i;
    (void)argument;
    for (i = 0; i < 1000; ++i) {
        number += smp_version();
    }
    return NULL;
}

int main(void)
{
    pthread_t a, b;
    if (pthread_create(&a, NULL, add, NULL) != 0 || pthread_create(&b, NULL, add, NULL) != 0) return 1;
    (void)pthread_join(a, NULL);
    (void)pthread_join(b, NULL);
    printf("%u\n", (unsigned)number);
    return 0;
}
