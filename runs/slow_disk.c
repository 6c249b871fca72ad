/* Loaded before a command (LD_PRELOAD), lets each write to a file and each rename take 20 ms longer: see chaos.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_if_file(int fd) {
  struct stat status;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) usleep(20000);
}

#define SLOW(result, name, parameters, arguments, wait) \
  result name parameters { \
    wait; \
    return ((result(*) parameters) dlsym(RTLD_NEXT, #name)) arguments; \
  }

SLOW(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n), wait_if_file(fd))
SLOW(ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), wait_if_file(fd))
SLOW(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at), wait_if_file(fd))
SLOW(ssize_t, pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at), wait_if_file(fd))
SLOW(int, fsync, (int fd), (fd), wait_if_file(fd))
SLOW(int, fdatasync, (int fd), (fd), wait_if_file(fd))
SLOW(int, rename, (const char *from, const char *to), (from, to), usleep(20000))
