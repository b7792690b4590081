package openai

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/model"
)

const key = "sk-test-0123456789abcdefghijklmnop"

func provider(t *testing.T, url string, change ...func(*model.Provider)) *model.Provider {
	t.Helper()
	b, _ := json.Marshal(map[string]any{"name": "p", "driver": "openai", "base_url": url, "secret": "main", "models": map[string]string{"m": "vendor/model:1"}})
	p, err := model.ParseProvider(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := model.ReadSecret(strings.NewReader(key + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	p = p.WithSecret(s)
	for _, c := range change {
		c(p)
	}
	return p
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// stream answers with the given events and [DONE].
func stream(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
		}
		io.WriteString(w, "data: [DONE]\n\n")
	}
}

func delta(text string) string {
	return fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%q}}]}`, text)
}

const stop = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`

func question() *model.Request {
	return &model.Request{Messages: []model.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"}}}
}

func call(ctx context.Context, d model.Driver, r *model.Request) (string, error) {
	var out []string
	err := model.Call(ctx, model.Options{Run: "ctx-1"}, []model.Candidate{{Name: "p/m", Driver: d}}, r, func(f model.Frame) error {
		out = append(out, string(f.JSON()))
		return nil
	})
	return strings.Join(out, "\n"), err
}

func TestStream(t *testing.T) {
	var got struct {
		header http.Header
		path   string
		body   map[string]any
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.header, got.path = r.Header.Clone(), r.URL.Path
		json.NewDecoder(r.Body).Decode(&got.body)
		stream(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`, delta("Hel"), delta("lo ☃"),
			`{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`, stop,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`)(w, r)
	})
	temp := 0.5
	r := question()
	r.MaxTokens, r.Temperature, r.Stop = 10, &temp, []string{"END"}
	out, err := call(t.Context(), New(provider(t, s.URL+"/v1/"), "m", Options{Effort: "xhigh"}), r)
	want := `{"type":"start","run":"ctx-1","model":"p/m"}
{"type":"delta","run":"ctx-1","text":"Hel"}
{"type":"delta","run":"ctx-1","text":"lo ☃"}
{"type":"reasoning_delta","run":"ctx-1","text":"hm"}
{"type":"message","run":"ctx-1","role":"assistant","content":[{"type":"text","text":"Hello ☃"}]}
{"type":"reasoning_message","run":"ctx-1","role":"assistant","content":[{"type":"text","text":"hm"}]}
{"type":"usage","run":"ctx-1","input_tokens":9,"output_tokens":2,"cached_tokens":4}
{"type":"done","run":"ctx-1","status":"ok"}`
	if out != want || err != nil {
		t.Errorf("%s\n%v", out, err)
	}
	if got.path != "/v1/chat/completions" || got.header.Get("Authorization") != "Bearer "+key {
		t.Errorf("%s %v", got.path, got.header)
	}
	body, _ := json.Marshal(got.body)
	wantBody := `{"max_tokens":10,"messages":[{"content":"be brief","role":"system"},{"content":"hi","role":"user"}],"model":"vendor/model:1","reasoning_effort":"high","stop":["END"],"stream":true,"stream_options":{"include_usage":true},"temperature":0.5}`
	if string(body) != wantBody {
		t.Errorf("%s", body)
	}
}

// TestToolCalls: names travel under aliases, pieces are put together, and the
// frames have the real names.
func TestToolCalls(t *testing.T) {
	var body struct {
		Messages []map[string]any
		Tools    []struct{ Function struct{ Name string } }
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		json.NewDecoder(r.Body).Decode(&body)
		for _, tool := range body.Tools {
			for _, c := range tool.Function.Name {
				if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", c) {
					w.WriteHeader(400)
					return
				}
			}
		}
		stream(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_A","type":"function","function":{"name":"fs_read","arguments":"{\"pa"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":1,"id":"call_B","function":{"name":"bash","arguments":""}},{"index":0,"function":{"arguments":"th\": \"a\"}"}}]}}]}`,
			`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`)(w, r)
	})
	r := question()
	for _, name := range []string{"fs.read", "bash", "fs.read.all"} {
		r.Tools = append(r.Tools, model.Tool{Name: name, Schema: json.RawMessage(`{"type":"object"}`)})
	}
	r.Messages = append(r.Messages,
		model.Message{Role: "assistant", ToolCalls: []model.ToolCall{{ID: "c0", Name: "fs.read", Arguments: json.RawMessage(`{"path":"z"}`)}}},
		model.Message{Role: "tool", ToolCallID: "c0", Content: "text"})
	out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), r)
	for _, want := range []string{
		`{"type":"tool_call","run":"ctx-1","id":"call_A","name":"fs.read","arguments":{"path":"a"}}`,
		`{"type":"tool_call","run":"ctx-1","id":"call_B","name":"bash","arguments":{}}`,
	} {
		if !strings.Contains(out, want) || err != nil {
			t.Errorf("%s\n%v", out, err)
		}
	}
	m, _ := json.Marshal(body.Messages[2:])
	if string(m) != `[{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"path\":\"z\"}","name":"fs_read"},"id":"c0","type":"function"}]},{"content":"text","role":"tool","tool_call_id":"c0"}]` {
		t.Errorf("%s", m)
	}
}

// TestRefusals: what a provider answers instead of an answer, and what is left of
// it in the error frame.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header http.Header
		body   string
		kind   fault.Kind
		text   string
	}{
		"key echoed": {401, nil, `{"error":{"message":"Incorrect API key provided: ` + key + `.","type":"invalid_request_error","code":"invalid_api_key"}}`,
			fault.Access, "status 401: invalid_api_key: Incorrect API key provided: [secret]."},
		"key echoed cut": {401, nil, `{"error":{"message":"bad key ` + key[:14] + `***` + key[len(key)-9:] + `"}}`, fault.Access, "status 401: bad key [secret]***[secret]"},
		"no such model":  {404, nil, `{"error":{"message":"no\u001b[2J model","code":null,"type":"x"}}`, fault.NotExist, "status 404: x: no[2J model"},
		"bad request":    {400, nil, `{"error":"context too long"}`, fault.Invalid, "status 400: context too long"},
		"html":           {500, nil, `<html>` + key + `</html>`, fault.IO, "status 500"},
		"detail":         {422, nil, `{"detail":"x"}`, fault.Invalid, "status 422: x"},
		"too large":      {413, nil, ``, fault.TooBig, "status 413"},
		"gateway":        {504, nil, ``, fault.TimedOut, "status 504"},
		"empty":          {418, nil, ``, fault.IO, "status 418"},
		"redirect":       {307, http.Header{"Location": {"https://example.com/"}}, ``, fault.Access, "status 307: redirects are refused"},
		"long": {400, nil, `{"error":{"message":"` + strings.Repeat("あ", 100_000) + `"}}`, fault.Invalid,
			"status 400"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range c.header {
					w.Header()[k] = v
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question())
			if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || strings.Contains(out, key[:9]) || len([]rune(err.Error())) > maxShown+50 {
				t.Errorf("%v\n%.300s", err, out)
			}
			if strings.Count(out, `"type":"done"`) != 1 || !strings.Contains(out, fmt.Sprintf(`"code":"%s"`, model.Code(err))) {
				t.Errorf("%s", out)
			}
		})
	}
}

// TestNothingLeaves: another origin sees neither request nor key, by a redirect
// or by the environment's proxy.
func TestNothingLeaves(t *testing.T) {
	var seen atomic.Int32
	other := serve(t, func(w http.ResponseWriter, r *http.Request) { seen.Add(1); stream(delta("stolen"))(w, r) })
	t.Setenv("HTTP_PROXY", other.URL)
	t.Setenv("http_proxy", other.URL)
	t.Setenv("ALL_PROXY", other.URL)
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", other.URL+r.URL.Path)
			w.WriteHeader(code)
		})
		if _, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question()); !fault.Is(err, fault.Access) {
			t.Errorf("%d: %v", code, err)
		}
	}
	if seen.Load() != 0 {
		t.Errorf("another origin was asked %d times", seen.Load())
	}
}

// TestLoopbackOnly: http to a name that is not this machine is refused when it is
// written and when it is dialled.
func TestLoopbackOnly(t *testing.T) {
	if _, err := dial(true)(t.Context(), "tcp", "192.0.2.1:9"); err == nil {
		t.Error("dialled")
	}
	for _, url := range []string{"http://example.com/v1", "http://10.0.0.1", "ftp://localhost", "http://127.0.0.1.nip.io/", "https://u:p@example.com", "https://x/?key=1", "https://x/#f", "https:x", "//x", ""} {
		b, _ := json.Marshal(map[string]any{"name": "p", "driver": "openai", "base_url": url})
		if _, err := model.ParseProvider(b); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"http://localhost:1/v1", "http://[::1]/", "http://127.0.0.2:8080", "https://example.com/v1"} {
		b, _ := json.Marshal(map[string]any{"name": "p", "driver": "openai", "base_url": url})
		if _, err := model.ParseProvider(b); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTLSIsVerified(t *testing.T) {
	s := httptest.NewTLSServer(stream(delta("x"), stop))
	defer s.Close()
	s.Config.ErrorLog = nil
	out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question())
	if !fault.Is(err, fault.Unavailable) || strings.Contains(out, "delta") {
		t.Error(out, err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{TLS: &tls.Config{RootCAs: roots}}), question()); err != nil {
		t.Error(out, err)
	}
}

// TestMalformed: every broken stream is an error, and no frame after it.
func TestMalformed(t *testing.T) {
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, text)
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"no JSON":        stream("{x"),
		"wrong types":    stream(`{"choices":{}}`),
		"cut":            raw("data: " + delta("a") + "\n\n"),
		"empty":          raw(""),
		"long line":      stream(delta(strings.Repeat("x", maxLine))),
		"long event":     raw(strings.Repeat("data: "+strings.Repeat("x", 100_000)+"\n", 4)),
		"error event":    stream(delta("a"), `{"error":{"message":"overloaded `+key+`","code":"x"}}`),
		"bad arguments":  stream(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":"{"}}]},"finish_reason":"tool_calls"}]}`),
		"no object":      stream(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":"[1]"}}]}}]}`),
		"no tool":        stream(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"../x","arguments":"{}"}}]}}]}`),
		"wild index":     stream(`{"choices":[{"delta":{"tool_calls":[{"index":99999,"id":"a","function":{"name":"t"}}]}}]}`),
		"content object": stream(`{"choices":[{"delta":{"content":{"a":1}}}]}`),
		"filter":         stream(`{"choices":[{"delta":{},"finish_reason":"content_filter"}]}`),
		"whole, no JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "x")
		},
		"whole, empty": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "{}")
		},
		"closed": func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		},
		"closed within": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", delta("a"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, h)
			out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question())
			lines := strings.Split(out, "\n")
			if err == nil || strings.Contains(out, key[:10]) {
				t.Fatalf("%v\n%s", err, out)
			}
			if !strings.Contains(lines[len(lines)-1], `"done"`) || !strings.Contains(lines[len(lines)-2], `"error"`) || strings.Contains(out, `"tool_call"`) {
				t.Errorf("%s", out)
			}
		})
	}
}

func TestWholeAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"hi","tool_calls":[{"id":"c","type":"function","function":{"name":"t","arguments":{"a":1}}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":-5}}`)
	})
	out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question())
	if err != nil || !strings.Contains(out, `"arguments":{"a":1}`) || !strings.Contains(out, `"text":"hi"`) || !strings.Contains(out, `"output_tokens":0`) {
		t.Errorf("%s %v", out, err)
	}
}

func TestAnswerIsBounded(t *testing.T) {
	line := "data: " + delta(strings.Repeat("x", 200_000)) + "\n\n"
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 200 {
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
		}
	})
	size := 0
	err := New(provider(t, s.URL), "m", Options{}).Complete(t.Context(), question(), func(f model.Frame) error { size += len(f.Text); return nil })
	if !fault.Is(err, fault.TooBig) || size > model.MaxAnswer {
		t.Error(size, err)
	}
}

// TestRateLimit: a busy provider is asked again after the time it names; one that
// names a long time, or stays busy, is given up.
func TestRateLimit(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		after  string
		busy   int32
		asked  int32
		kind   fault.Kind
	}{
		"once":       {429, "0", 1, 2, 0},
		"twice":      {503, "0", 2, 3, 0},
		"for ever":   {429, "0", 99, 3, fault.Again},
		"for long":   {429, "3600", 99, 1, fault.Again},
		"other 5xx":  {500, "0", 99, 1, fault.IO},
		"unfindable": {404, "0", 99, 1, fault.NotExist},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) <= c.busy {
					w.Header().Set("Retry-After", c.after)
					w.WriteHeader(c.status)
					return
				}
				stream(delta("x"), stop)(w, r)
			})
			out, err := call(t.Context(), New(provider(t, s.URL), "m", Options{}), question())
			if n.Load() != c.asked || (err == nil) != (c.kind == 0 && c.busy < 99) || err != nil && !fault.Is(err, c.kind) {
				t.Errorf("asked %d times, %v\n%s", n.Load(), err, out)
			}
		})
	}
}

// TestSilence: a provider that says nothing, before or within its answer, is
// given up after the idle time; one whose reader is slow is not.
func TestSilence(t *testing.T) {
	hang := func(first string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if first != "" {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, first)
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}
	}
	for name, first := range map[string]string{"at once": "", "later": "data: " + delta("a") + "\n\n"} {
		s := serve(t, hang(first))
		_, err := call(t.Context(), New(provider(t, s.URL), "m", Options{Idle: 50 * time.Millisecond}), question())
		if !fault.Is(err, fault.TimedOut) {
			t.Errorf("%s: %v", name, err)
		}
		p := provider(t, s.URL, func(p *model.Provider) { p.Timeout = 1 })
		if out, err := call(t.Context(), New(p, "m", Options{}), question()); !fault.Is(err, fault.TimedOut) || !strings.Contains(out, `"status":"error"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := serve(t, stream(delta("a"), delta("b"), stop))
	// A slow taker is no silent provider. The limit is long for a loaded machine.
	const idle = time.Second
	slow := true
	err := New(provider(t, s.URL), "m", Options{Idle: idle}).Complete(t.Context(), question(), func(model.Frame) error {
		if slow {
			slow = false
			<-time.After(idle + idle/2)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	gone := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", delta("a"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var out []string
	err := model.Call(ctx, model.Options{}, []model.Candidate{{Name: "p/m", Driver: New(provider(t, s.URL), "m", Options{})},
		{Name: "p/never", Driver: New(provider(t, s.URL), "m", Options{})}}, question(), func(f model.Frame) error {
		out = append(out, f.Type+f.Status)
		if f.Type == "delta" {
			cancel()
		}
		return nil
	})
	if !fault.Is(err, fault.Interrupted) || !slices.Equal(out, []string{"start", "delta", "error", "donecancelled"}) {
		t.Error(out, err)
	}
	<-gone // the provider is told at once
	stop := errors.New("the reader is gone")
	s2 := serve(t, stream(delta("a"), delta("b"), stopFrame()))
	if err := New(provider(t, s2.URL), "m", Options{}).Complete(t.Context(), question(), func(model.Frame) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func stopFrame() string { return stop }
