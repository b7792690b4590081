#!/usr/bin/python3
"""crash.py BIN ROUNDS: random control writes and appends, kill -9 of the daemon in the middle, mount through fstab, and a
look at what is there. Run by private.sh. A close or fsync that returned is a promise; FAIL lines say which was broken."""
import errno, json, os, random, signal, subprocess, sys, threading, time

bin_, rounds = sys.argv[1], int(sys.argv[2])
seed = int(os.environ.get("CTX_SEED", random.randrange(1 << 30)))
rand = random.Random(seed)
base, store, mnt = "/run/m", "/run/m/store", "/run/m/ctx"
ctx = os.path.join(bin_, "ctx")
env = {"CTX_ROOT": mnt, "PATH": "/usr/bin:/bin:/usr/sbin"}
failed = False


def fail(*words):
    global failed
    failed = True
    print("FAIL", *words, "seed", seed, flush=True)


def run(*argv, check=True):
    p = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if check and p.returncode != 0:
        fail(argv, "exit", p.returncode, p.stdout, p.stderr)
    return p.stdout


os.symlink(bin_ + "/cortexfs", base + "/sbin/mount.fuse.cortexfs")
subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={base}/sbin:/usr/sbin", "/usr/sbin"], check=True)
os.mkdir(store, 0o700)
os.mkdir(mnt)
with open("/etc/fstab", "w") as f:
    f.write(f"{store} {mnt} fuse.cortexfs allow_other,nofail 0 0\n")
run("mount", "-a")
run(ctx, "bootstrap")
run(ctx, "agent", "start", "coder", "--no-default-workspace")
agent_pid = open(mnt + "/agent/coder.d/pid").read()
d, data = mnt + "/agent/coder.d/", mnt + "/home/0/agent/coder/data/"
os.makedirs(data, exist_ok=True)


def texts():
    n = rand.randrange(1 << 20)
    yield "system.md", f"prompt {n}\n" + "x" * rand.randrange(30000) + f"\nend {n}\n"
    yield "env", "".join(f"K{i}={n}\n" for i in range(rand.randrange(1, 40)))
    yield "approval", rand.choice(["auto\n", "ask\n"])
    yield "meta.json", json.dumps({"n": n, "pad": "y" * rand.randrange(5000)}) + "\n"
    yield "policy", f"# {n}\nallow coder_t tool:tsh execute\n" + "".join(f"# remark {i}\n" for i in range(rand.randrange(500)))


promised = {}  # control -> text of the last write that was acknowledged
maybe = {}     # control -> texts that were under way when the daemon died
lines = {}     # file -> number of lines that were acknowledged
stop = threading.Event()


def write(name, text, how):
    maybe.setdefault(name, []).append(text)
    try:
        if how == 0:
            with open(d + name, "w") as f:
                f.write(text)
        elif how == 1:  # in pieces, as editors do
            with open(d + name, "wb", buffering=0) as f:
                b = text.encode()
                for i in range(0, len(b), 4096):
                    f.write(b[i:i + 4096])
                os.fsync(f.fileno())
        else:
            tmp = d + name + "~"
            with open(tmp, "w") as f:
                f.write(text)
            os.rename(tmp, d + name)
    except OSError as e:
        if e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EINTR, errno.ENOENT):
            return False
        fail("write", name, how, e)
        return False
    promised[name] = text
    maybe[name] = []
    return True


def writer(name, r):
    while not stop.is_set():
        text = dict(texts())[name]
        if not write(name, text, r.randrange(3)):
            return


def appender(path):
    n = lines.get(path, 0)
    while not stop.is_set():
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, b"line %d\n" % n)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            return
        n += 1
        lines[path] = n


def daemon_pid():
    return json.loads(run(ctx, "status", "-o", "json"))["daemon_pid"]


for i in range(rounds):
    pid = daemon_pid()
    stop.clear()
    threads = [threading.Thread(target=writer, args=(n, random.Random(rand.random()))) for n, _ in texts()]
    threads += [threading.Thread(target=appender, args=(data + f"log{k}",)) for k in range(2)]
    for t in threads:
        t.start()
    time.sleep(rand.uniform(0.01, 0.2))
    os.kill(pid, signal.SIGKILL)
    stop.set()
    for t in threads:
        t.join()
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.005)
    run("mount", mnt)
    if open("/proc/self/mountinfo").read().count(f" {mnt} ") != 1:
        fail("round", i, "more than one mount")
    for name, _ in texts():
        have = open(d + name).read()
        good = [promised[name]] if name in promised else None
        if good is not None and have not in good + maybe.get(name, []):
            fail("round", i, name, "is neither what was acknowledged nor what was under way:", repr(have[:60]), "for", repr(promised[name][:60]))
        promised[name], maybe[name] = have, []
    for path, n in list(lines.items()):
        got = open(path).read().splitlines()
        if got[:n] != [f"line {k}" for k in range(n)] or len(got) > n + 1:
            fail("round", i, path, len(got), "lines of", n)
        lines[path] = len(got)
    if i % 5 == 0 or i == rounds - 1:
        now = open(d + "pid").read()
        inside = run(ctx, "agent", "exec", "coder", "--", "cat", "/ctx/status").strip()
        if now != agent_pid or inside != "ready":
            fail("round", i, "the agent was", agent_pid, "and is", now, inside)
pid = daemon_pid()
run("umount", mnt)
left = os.listdir(store + "/tmp")
if len(left) > 8:
    fail("left in the store's tmp:", left[:5])
print("rounds", rounds, sum(lines.values()), "lines", "failed" if failed else "ok")
