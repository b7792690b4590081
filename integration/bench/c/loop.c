/* loop DIR: the floor: a file system of one file "f" of 20 bytes, one thread, no
 * library, no cache. Mounts itself (root) and prints "ready". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int dev;
static char in[(1 << 20) + 4096];
static const char content[] = "twenty bytes of text";

static void reply(struct fuse_in_header *h, int err, void *data, size_t n) {
	struct fuse_out_header o = {.len = sizeof o + n, .error = -err, .unique = h->unique};
	struct iovec v[2] = {{&o, sizeof o}, {data, n}};
	if (writev(dev, v, n ? 2 : 1) < 0 && errno != ENOENT) perror("loop: reply");
}

static void fill(struct fuse_attr *a, uint64_t id) {
	a->ino = id;
	a->nlink = 1;
	a->blksize = 4096;
	a->mode = id == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
	a->size = id == 1 ? 0 : sizeof content - 1;
}

int main(int argc, char **argv) {
	char opt[100];
	if (argc < 2) return 2;
	dev = open("/dev/fuse", O_RDWR);
	if (dev < 0) { perror("loop: /dev/fuse"); return 1; }
	snprintf(opt, sizeof opt, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", dev);
	if (mount("loop", argv[1], "fuse.loop", MS_NOSUID | MS_NODEV, opt) < 0) { perror("loop: mount"); return 1; }
	for (;;) {
		ssize_t n = read(dev, in, sizeof in);
		if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
		if (n <= 0) return 0;
		struct fuse_in_header *h = (void *)in;
		void *arg = in + sizeof *h;
		switch (h->opcode) {
		case FUSE_INIT: {
			struct fuse_init_in *i = arg;
			struct fuse_init_out o = {.major = 7, .minor = 33, .max_readahead = i->max_readahead,
				.flags = FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS, .max_background = 64,
				.congestion_threshold = 48, .max_write = 131072, .time_gran = 1};
			reply(h, 0, &o, sizeof o);
			puts("ready");
			fflush(stdout);
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out e = {.nodeid = 2, .generation = 1};
			if (strcmp(arg, "f")) { reply(h, ENOENT, NULL, 0); break; }
			fill(&e.attr, 2);
			reply(h, 0, &e, sizeof e);
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out a = {0};
			fill(&a.attr, h->nodeid);
			reply(h, 0, &a, sizeof a);
			break;
		}
		case FUSE_OPEN: {
			struct fuse_open_out o = {.fh = 1, .open_flags = FOPEN_DIRECT_IO};
			reply(h, 0, &o, sizeof o);
			break;
		}
		case FUSE_READ: {
			struct fuse_read_in *r = arg;
			size_t len = sizeof content - 1;
			reply(h, 0, (void *)content, r->offset ? 0 : len);
			break;
		}
		case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT:
			break;
		case FUSE_FLUSH: case FUSE_RELEASE:
			reply(h, 0, NULL, 0);
			break;
		default:
			reply(h, ENOSYS, NULL, 0);
		}
	}
}
