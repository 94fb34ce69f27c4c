/* A disk that keeps only what was synced: preloaded into a process, it notes what fsync and fdatasync make
 * durable below SHIM_ROOT, in the folder SHIM_SHADOW:
 *
 *   inodes/<inode>-<birth>  what the file held when it was last synced
 *   dirs/<inode>-<birth>    "<kind> <inode>-<birth> <name>" of every entry when the folder was last synced
 *
 * tests/faults/disks.py builds from it what a power cut leaves behind. The syncs themselves are not made: the
 * page cache survives the process, and what counts as durable is only what stands in the shadow. Writes need
 * no watching: what differs between the files and their shadows is what was not synced.
 *
 * SHIM_FAIL_AT=n  the n-th sync of a file fails with EIO, and later syncs of that file lie: they return 0 and
 *                 keep nothing, as Linux does after a failed write-back.
 * SHIM_CUT_AT=n   the process dies at the n-th sync of anything, before it keeps anything; with
 *                 SHIM_CUT_AFTER, right after.
 * SHIM_COUNT=path the number of syncs so far, as text, written at every sync.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 65536

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int syncs, file_syncs;
static char lying[128];

static int name_of(int fd, char *name, size_t size, unsigned *mode) {
    struct statx found;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &found) != 0) return -1;
    *mode = found.stx_mode;
    snprintf(name, size, "%llu-%lld.%u", (unsigned long long)found.stx_ino,
             (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    return 0;
}

/* Whether a descriptor is of something below the root. */
static int is_watched(int fd) {
    const char *root = getenv("SHIM_ROOT");
    char link[64], path[4096];
    if (root == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(root);
    return strncmp(path, root, prefix) == 0 && (path[prefix] == 0 || path[prefix] == '/');
}

static void broken(const char *what) {
    fprintf(stderr, "shim: %s: %s\n", what, strerror(errno));
    abort(); /* a test that goes on would show nothing */
}

static int keep_file(int fd, const char *target) {
    char link[64], now[BLOCK], kept[BLOCK];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd); /* the descriptor may not be open for reading */
    int from = open(link, O_RDONLY | O_CLOEXEC), to = open(target, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (from < 0 || to < 0) broken("cannot open a shadow");
    off_t at = 0;
    for (;;) {
        ssize_t read_now = pread(from, now, BLOCK, at);
        if (read_now < 0) broken("cannot read");
        if (read_now == 0) break;
        ssize_t read_kept = pread(to, kept, BLOCK, at);
        if (read_kept != read_now || memcmp(now, kept, (size_t)read_now) != 0) {
            if (pwrite(to, now, (size_t)read_now, at) != read_now) broken("cannot write a shadow");
        }
        at += read_now;
    }
    if (ftruncate(to, at) != 0) broken("cannot cut a shadow");
    close(from);
    close(to);
    return 0;
}

static void keep_folder(int fd, const char *target) {
    char link[64], hidden[4200], name[128];
    unsigned mode;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    snprintf(hidden, sizeof hidden, "%s.new", target);
    DIR *folder = opendir(link);
    FILE *list = fopen(hidden, "w");
    if (folder == NULL || list == NULL) broken("cannot list");
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int inner = openat(dirfd(folder), entry->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0) continue; /* it went meanwhile */
        if (name_of(inner, name, sizeof name, &mode) == 0)
            fprintf(list, "%c %s %s\n", S_ISDIR(mode) ? 'd' : 'f', name, entry->d_name);
        close(inner);
    }
    closedir(folder);
    if (fclose(list) != 0 || rename(hidden, target) != 0) broken("cannot keep a list");
}

static int number(const char *variable) {
    const char *text = getenv(variable);
    return text == NULL ? 0 : atoi(text);
}

static void count(void) {
    const char *path = getenv("SHIM_COUNT");
    if (path == NULL) return;
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d", syncs) < 0 || fclose(file) != 0) broken("cannot count");
}

static int keep(int fd) {
    char name[128], target[4096];
    unsigned mode;
    const char *shadow = getenv("SHIM_SHADOW");
    if (shadow == NULL || name_of(fd, name, sizeof name, &mode) != 0) broken("no shadow");
    syncs++;
    count();
    if (syncs == number("SHIM_CUT_AT") && !getenv("SHIM_CUT_AFTER")) kill(getpid(), SIGKILL);
    int is_folder = S_ISDIR(mode);
    if (!is_folder) {
        if (++file_syncs == number("SHIM_FAIL_AT")) {
            snprintf(lying, sizeof lying, "%s", name);
            errno = EIO;
            return -1;
        }
        if (strcmp(lying, name) == 0) return 0;
    }
    /* Other processes sync the same files: an older copy must not come after a newer one. */
    snprintf(target, sizeof target, "%s/lock", shadow);
    int lock = open(target, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) broken("no lock");
    snprintf(target, sizeof target, "%s/%s/%s", shadow, is_folder ? "dirs" : "inodes", name);
    if (is_folder) keep_folder(fd, target);
    else keep_file(fd, target);
    close(lock);
    if (syncs == number("SHIM_CUT_AT")) kill(getpid(), SIGKILL);
    return 0;
}

static int synced(int fd) {
    if (!is_watched(fd)) return 0;
    pthread_mutex_lock(&turn);
    int done = keep(fd), error = errno;
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }
int fdatasync64(int fd) { return synced(fd); }
