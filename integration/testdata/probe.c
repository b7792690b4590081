/* probe CALL ARGUMENT…: makes one attempt and prints what came of it: "ok", or the name of the errno.
 * Linked statically, so that it runs in any sandbox. The numbers beside the calls are those of the cases in
 * escape_test.go. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int say(long r) {
	puts(r < 0 ? strerrorname_np(errno) : "ok");
	return r < 0;
}

static int dial(const char *path, int abstract) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + abstract + strlen(path);
	strncpy(a.sun_path + abstract, path, sizeof a.sun_path - 1 - abstract);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	return say(s < 0 ? s : connect(s, (void *)&a, len));
}

static int listener(const char *path) { /* 80 */
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	return say(s < 0 ? s : bind(s, (void *)&a, sizeof a));
}

static int tcp(const char *ip, int port) { /* 41 */
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_aton(ip, &a.sin_addr);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	return say(s < 0 ? s : connect(s, (void *)&a, sizeof a));
}

static int memexec(const char *prog) { /* 46 */
	char buf[65536];
	int in = open(prog, O_RDONLY), m = memfd_create("x", 0);
	for (ssize_t n; (n = read(in, buf, sizeof buf)) > 0;)
		if (write(m, buf, n) != n) return say(-1);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", m);
	execl(path, prog, "pid", NULL);
	return say(-1);
}

/* 71, 95: every way that this ABI has to set a setuid or setgid bit on a file; each has to fail. */
static int setid(const char *dir) {
	char f[4096], g[4096];
	snprintf(f, sizeof f, "%s/setid", dir);
	snprintf(g, sizeof g, "%s/setid2", dir);
	int fd = open(f, O_CREAT | O_RDWR, 0755), bad = 0;
	if (fd < 0) return say(-1);
	struct { __u64 flags, mode, resolve; } how = {O_CREAT | O_RDWR, 04777, 0};
	long got[] = {
		syscall(SYS_chmod, f, 04755), syscall(SYS_chmod, f, 02755), syscall(SYS_fchmod, fd, 06755),
		syscall(SYS_fchmodat, AT_FDCWD, f, 04755), syscall(452 /* fchmodat2 */, AT_FDCWD, f, 04755, 0),
		syscall(SYS_creat, g, 04755), syscall(SYS_open, g, O_CREAT | O_RDWR, 02755),
		syscall(SYS_openat, AT_FDCWD, g, O_CREAT | O_RDWR, 04755),
		syscall(SYS_open, dir, O_TMPFILE | O_RDWR, 04755),
		syscall(SYS_mknod, g, S_IFREG | 04755, 0), syscall(SYS_mknodat, AT_FDCWD, g, S_IFREG | 02755, 0),
		syscall(SYS_openat2, AT_FDCWD, g, &how, sizeof how), syscall(SYS_io_uring_setup, 1, NULL),
	};
	for (unsigned i = 0; i < sizeof got / sizeof *got; i++)
		if (got[i] >= 0) { printf("way %u worked ", i); bad = 1; }
	struct stat st;
	if (fstat(fd, &st) == 0 && st.st_mode & 06000) bad = 1;
	unlink(f);
	unlink(g);
	puts(bad ? "set" : "none");
	return bad;
}

static int handle(void) { /* 31: the root inode of the file system below the workspace */
	struct { unsigned bytes; int type; unsigned char h[128]; } f = {8, 1, {2}};
	int at = open("/workspace", O_RDONLY | O_DIRECTORY);
	return say(syscall(SYS_open_by_handle_at, at, &f, O_RDONLY));
}

static int steal(int pid) { /* 90 */
	int p = syscall(SYS_pidfd_open, pid, 0);
	return say(p < 0 ? p : syscall(SYS_pidfd_getfd, p, 3, 0));
}

int main(int argc, char **argv) {
	const char *c = argc > 1 ? argv[1] : "", *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "0";
	setvbuf(stdout, NULL, _IONBF, 0);
	if (!strcmp(c, "pid")) { puts("ran"); return 0; }
	if (!strcmp(c, "int80")) { /* 3 */
#ifdef __x86_64__
		long r;
		__asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory");
		printf("int80 gave %ld\n", r);
#endif
		return 0;
	}
	if (!strcmp(c, "x32")) { printf("x32 gave %ld\n", syscall(0x40000000 | SYS_getpid)); return 0; } /* 4 */
	if (!strcmp(c, "sti")) return say(ioctl(0, TIOCSTI, "x"));                                    /* 1 */
	if (!strcmp(c, "sti-high")) return say(syscall(SYS_ioctl, 0, 1ul << 32 | TIOCSTI, "x"));      /* 2 */
	if (!strcmp(c, "tty")) return say(open("/dev/tty", O_RDWR | O_NOCTTY));
	if (!strcmp(c, "console")) return say(open("/dev/console", O_RDWR | O_NOCTTY));
	if (!strcmp(c, "mount")) return say(mount("x", a, b, 0, NULL));                               /* 28, 32 */
	if (!strcmp(c, "remount")) return say(mount(NULL, a, NULL, MS_REMOUNT | MS_BIND, NULL));      /* 24 */
	if (!strcmp(c, "umount")) return say(umount2(a, MNT_DETACH));                                 /* 26 */
	if (!strcmp(c, "userns")) return say(unshare(CLONE_NEWUSER | CLONE_NEWNS));                   /* 25, 27 */
	if (!strcmp(c, "clone")) { /* 27 */
		long r = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
		if (r == 0) _exit(0);
		return say(r);
	}
	if (!strcmp(c, "clone3")) return say(syscall(SYS_clone3, NULL, 0));
	if (!strcmp(c, "setns")) { /* 25 */
		char p[64];
		snprintf(p, sizeof p, "/proc/%s/ns/%s", a, b);
		int f = open(p, O_RDONLY);
		return say(f < 0 ? f : syscall(SYS_setns, f, 0));
	}
	if (!strcmp(c, "chroot")) return say(chroot(a));
	if (!strcmp(c, "ptrace")) return say(ptrace(PTRACE_ATTACH, atoi(a), 0, 0));                   /* 17, 90 */
	if (!strcmp(c, "seize")) return say(ptrace(PTRACE_SEIZE, atoi(a), 0, 0));
	if (!strcmp(c, "kill")) return say(kill(atoi(a), 0));                                         /* 19 */
	if (!strcmp(c, "steal")) return steal(atoi(a));
	if (!strcmp(c, "open")) return say(open(a, O_RDONLY));
	if (!strcmp(c, "write")) return say(open(a, O_WRONLY));
	if (!strcmp(c, "truncate")) return say(open(a, O_WRONLY | O_TRUNC));                          /* 12 */
	if (!strcmp(c, "device")) return say(mknod(a, S_IFCHR | 0666, 0x103));                        /* 30 */
	if (!strcmp(c, "link")) return say(link(a, b));                                               /* 38 */
	if (!strcmp(c, "rename")) return say(rename(a, b));                                           /* 33 */
	if (!strcmp(c, "handle")) return handle();
	if (!strcmp(c, "abstract")) return dial(a, 1);                                                /* 40 */
	if (!strcmp(c, "unix")) return dial(a, 0);                                                    /* 39, 79 */
	if (!strcmp(c, "listen")) return listener(a);
	if (!strcmp(c, "tcp")) return tcp(a, atoi(b));
	if (!strcmp(c, "socket")) return say(socket(atoi(a), atoi(b), argc > 4 ? atoi(argv[4]) : 0)); /* 42 */
	if (!strcmp(c, "io_uring")) return say(syscall(SYS_io_uring_setup, 1, NULL));                 /* 43 */
	if (!strcmp(c, "keyring")) return say(syscall(SYS_keyctl, 10, -4, "user", a, 0));             /* 44 */
	if (!strcmp(c, "shm")) return say(shmget(atoi(a), 0, 0));                                     /* 45 */
	if (!strcmp(c, "memexec")) return memexec(argv[0]);
	if (!strcmp(c, "setid")) return setid(a);
	if (!strcmp(c, "fallocate")) { /* 52 */
		int f = open(a, O_CREAT | O_RDWR, 0600);
		long r = f < 0 ? f : fallocate(f, 0, 0, 1ll << 31);
		int e = errno;
		unlink(a);
		errno = e;
		return say(r);
	}
	fprintf(stderr, "probe: no attempt %s\n", c);
	return 2;
}
