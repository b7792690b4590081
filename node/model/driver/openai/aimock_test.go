package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/model"
)

// mockScript is a server that others wrote, with answers of ours. It prints its
// address and ends with its standard input.
const mockScript = `import { LLMock } from "@copilotkit/aimock";
const mock = new LLMock({ port: 0, host: "127.0.0.1", logLevel: "silent" });
mock.onToolResult("call_1", { content: "The file says hello." });
mock.onMessage("read the file", { toolCalls: [{ id: "call_1", name: "fs_read", arguments: "{\"path\":\"/workspace/a\"}" }] });
mock.onMessage("hello", { content: "Hello from the mock, 你好 👋, in several chunks so that there is something to stream." });
mock.onMessage("fail", { error: { message: "no such key ` + key + `", type: "auth", code: "bad_key" }, status: 401 });
await mock.start();
console.log(mock.url);
process.stdin.resume();
process.stdin.on("end", async () => { await mock.stop(); process.exit(0); });
`

// startMock installs and starts @copilotkit/aimock in a temp directory.
func startMock(t *testing.T) string {
	t.Helper()
	missing := func(format string, args ...any) {
		t.Helper()
		if strings.Contains(os.Getenv("CTX_REQUIRE"), "npm") {
			t.Fatalf(format, args...)
		}
		t.Skipf(format, args...)
	}
	for _, prog := range []string{"npm", "node"} {
		if _, err := exec.LookPath(prog); err != nil {
			missing("%s is not installed", prog)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, "@copilotkit/aimock@1.43.0")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		missing("npm install @copilotkit/aimock: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "mock.mjs"), []byte(mockScript), 0o600); err != nil {
		t.Fatal(err)
	}
	node := exec.Command("node", "mock.mjs")
	node.Dir = dir
	node.Stderr = os.Stderr
	in, err := node.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		time.AfterFunc(5*time.Second, func() { node.Process.Kill() })
		node.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the mock did not start: %v", err)
	}
	return strings.TrimSpace(url)
}

// TestForeignServer speaks to a mock of the API that others wrote, over HTTP on
// loopback: text, a tool call with an alias, its result, and a refusal.
func TestForeignServer(t *testing.T) {
	url := startMock(t)
	d := New(provider(t, url+"/v1"), "m", Options{})
	ask := func(text string, more ...model.Message) *model.Request {
		return &model.Request{
			Messages: append([]model.Message{{Role: "system", Content: "You are a test."}, {Role: "user", Content: text}}, more...),
			Tools:    []model.Tool{{Name: "fs.read", Description: "reads", Schema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}}}`)}},
		}
	}
	out, err := call(t.Context(), d, ask("hello"))
	if err != nil || strings.Count(out, `"delta"`) < 2 || !strings.Contains(out, "你好 👋") || !strings.Contains(out, `"usage"`) {
		t.Errorf("%s\n%v", out, err)
	}
	out, err = call(t.Context(), d, ask("read the file"))
	if err != nil || !strings.Contains(out, `"id":"call_1","name":"fs.read","arguments":{"path":"/workspace/a"}`) {
		t.Errorf("%s\n%v", out, err)
	}
	out, err = call(t.Context(), d, ask("read the file",
		model.Message{Role: "assistant", ToolCalls: []model.ToolCall{{ID: "call_1", Name: "fs.read", Arguments: json.RawMessage(`{"path":"/workspace/a"}`)}}},
		model.Message{Role: "tool", ToolCallID: "call_1", Content: "hello"}))
	if err != nil || !strings.Contains(out, "The file says hello.") {
		t.Errorf("%s\n%v", out, err)
	}
	out, err = call(t.Context(), d, ask("fail"))
	if !fault.Is(err, fault.Access) || strings.Contains(out, key) || !strings.Contains(out, "[secret]") {
		t.Errorf("%s\n%v", out, err)
	}
	// What the server has received is what we say that we send.
	res, err := http.Get(url + "/__aimock/journal")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var journal []struct {
		Path string
		Body struct {
			Model    string
			Messages []struct{ Role string }
			Tools    []struct{ Function struct{ Name string } }
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&journal); err != nil || len(journal) != 4 {
		t.Fatalf("%d requests, %v", len(journal), err)
	}
	for _, e := range journal {
		if e.Path != "/v1/chat/completions" || e.Body.Model != "vendor/model:1" || e.Body.Tools[0].Function.Name != "fs_read" || e.Body.Messages[0].Role != "system" {
			t.Errorf("%+v", e)
		}
	}
}
