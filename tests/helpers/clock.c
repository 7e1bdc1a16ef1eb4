/* Loaded before the C library, with LD_PRELOAD: the time of day is as many seconds ahead of the machine's as the
   file that JUMPING_CLOCK names says in its first eight bytes. Clocks that do not tell the time of day stay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *file;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("JUMPING_CLOCK");
  int opened = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  if (opened >= 0) {
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, opened, 0);
    if (found != MAP_FAILED) file = found;
    close(opened);
  }
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if (!real) begin();
  int failed = real(id, now);
  if (!failed && file && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *file;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *told) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  if (told) *told = found.tv_sec;
  return found.tv_sec;
}
