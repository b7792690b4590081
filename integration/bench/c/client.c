/* client OP PATH MILLISECONDS [TEXT]: repeats one action with raw system calls for
 * a time and prints "COUNT NANOSECONDS". A failing call ends it with 1. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static const char *path, *text = "x\n";
static int held = -1;
static struct stat st;
static char buf[1 << 20];

static void die(const char *what) {
	fprintf(stderr, "client: %s %s: %s\n", what, path, strerror(errno));
	exit(1);
}

static void do_fstat(void) {
	if (fstat(held, &st) < 0) die("fstat");
}

static void do_stat(void) {
	if (stat(path, &st) < 0) die("stat");
}

static void do_missing(void) {
	if (stat(path, &st) == 0 || errno != ENOENT) die("stat of a missing name");
}

static void do_orc(void) {
	int fd = open(path, O_RDONLY);
	if (fd < 0) die("open");
	if (read(fd, buf, 4096) < 0) die("read");
	if (close(fd) < 0) die("close");
}

static void do_owc(void) {
	int fd = open(path, O_WRONLY);
	if (fd < 0) die("open");
	if (write(fd, text, strlen(text)) < 0) die("write");
	if (close(fd) < 0) die("close");
}

struct entry { /* linux_dirent64 */
	unsigned long ino, off;
	unsigned short len;
	unsigned char type;
	char name[];
};

static void list(int stats) {
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	long n;
	if (fd < 0) die("open");
	while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
		for (long at = 0; stats && at < n;) {
			struct entry *e = (struct entry *)(buf + at);
			if (fstatat(fd, e->name, &st, AT_SYMLINK_NOFOLLOW) < 0) die("fstatat");
			at += e->len;
		}
	if (n < 0) die("getdents64");
	close(fd);
}

static void do_rd(void) { list(0); }
static void do_rdl(void) { list(1); }

/* What a durable replacement of a small file costs by itself: PATH is a directory. */
static void do_commit(void) {
	static char tmp[4096], to[4096];
	snprintf(tmp, sizeof tmp, "%s/.commit.tmp", path);
	snprintf(to, sizeof to, "%s/.commit", path);
	int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0600), dir;
	if (fd < 0 || write(fd, text, strlen(text)) < 0 || fsync(fd) < 0 || close(fd) < 0) die("commit");
	if (rename(tmp, to) < 0) die("rename");
	if ((dir = open(path, O_RDONLY | O_DIRECTORY)) < 0 || fsync(dir) < 0 || close(dir) < 0) die("directory");
}

static void do_exec(void) {
	char *argv[] = {(char *)path, NULL};
	pid_t pid;
	int status, err = posix_spawn(&pid, path, NULL, NULL, argv, environ);
	if (err) { errno = err; die("spawn"); }
	if (waitpid(pid, &status, 0) < 0 || status != 0) die("wait");
}

static long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int argc, char **argv) {
	static const struct { const char *name; void (*f)(void); } ops[] = {
		{"fstat", do_fstat}, {"stat", do_stat}, {"missing", do_missing}, {"orc", do_orc},
		{"owc", do_owc}, {"rd", do_rd}, {"rdl", do_rdl}, {"exec", do_exec}, {"commit", do_commit},
	};
	void (*f)(void) = NULL;
	if (argc < 4) return 2;
	for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++)
		if (!strcmp(ops[i].name, argv[1])) f = ops[i].f;
	if (!f) return 2;
	path = argv[2];
	long bound = atol(argv[3]) * 1000000L, count = 0;
	if (argc > 4) text = argv[4];
	if (f == do_fstat && (held = open(path, O_RDONLY)) < 0) die("open");
	for (int i = 0; i < 2; i++) f(); /* warm */
	long start = now(), end = start;
	while (end - start < bound) {
		f();
		count++;
		end = now();
	}
	printf("%ld %ld\n", count, end - start);
	return 0;
}
