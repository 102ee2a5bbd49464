/* A race, which `make test-tsan` has to find: two threads count without a lock. */
#include <pthread.h>
#include <stdio.h>

static int counted;

static void *count(void *argument) {
    (void)argument;
    for (int i = 0; i < 1000; i++) counted++;
    return NULL;
}

int main(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, count, NULL) != 0) return 1;
    count(NULL);
    pthread_join(other, NULL);
    printf("%d\n", counted);
    return 0;
}
