// Package browser lets a test look at a page as a person does, in a real Chromium.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/walpost/walpost/internal/testenv/short"
)

// chromium is the path of a browser.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium on this machine, which shows the status page (apt-get install chromium; go test -short needs none)")
	return ""
}

// Start starts a browser, which ends with the test.
func Start(t *testing.T) context.Context {
	t.Helper()
	short.Skip(t, "a browser")
	path := chromium(t)
	dir, err := os.MkdirTemp("", "walpost-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the browser's own children write into it for a moment after it has gone
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(dir),
		chromedp.WSURLReadTimeout(2*time.Minute)) // a first start on a busy machine can take longer than the default of 20 s
	all, end := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(end)
	browser, endBrowser := chromedp.NewContext(all)
	t.Cleanup(endBrowser)
	return browser
}

// A Visit is one tab of a browser.
type Visit struct {
	t    *testing.T
	ctx  context.Context
	mu   sync.Mutex
	said []string
}

// NewVisit uses the tab of ctx.
func NewVisit(t *testing.T, ctx context.Context) *Visit { return &Visit{t: t, ctx: ctx} }

// Listen keeps what the browser complains of, for Clean.
func (v *Visit) Listen() {
	v.t.Helper()
	chromedp.ListenTarget(v.ctx, func(event any) {
		v.mu.Lock()
		defer v.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			v.said = append(v.said, e.Entry.Text)
		case *runtime.EventExceptionThrown:
			v.said = append(v.said, e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			v.said = append(v.said, fmt.Sprint(e.Type))
		case *page.EventJavascriptDialogOpening:
			v.said = append(v.said, "dialog: "+e.Message)
		}
	})
	v.Do(log.Enable())
}

// Do ends the test if an action fails.
func (v *Visit) Do(actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		v.t.Fatal(err)
	}
}

// Sees waits until the page's text has a piece in it.
func (v *Visit) Sees(text string) {
	v.t.Helper()
	var ok bool
	if err := chromedp.Run(v.ctx, chromedp.Poll(fmt.Sprintf(`document.body.innerText.replaceAll("\u00a0", " ").includes(%q)`, text), &ok, chromedp.WithPollingTimeout(2*time.Minute))); err != nil {
		var all string
		v.Do(chromedp.Text("body", &all))
		v.Shot("failed")
		v.t.Fatalf("the page does not say %q: %v\n%s\n%s", text, err, all, v.complaints())
	}
}

func (v *Visit) complaints() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string{}, v.said...)
}

// Clean fails if the browser has complained of anything.
func (v *Visit) Clean() {
	v.t.Helper()
	for _, text := range v.complaints() {
		v.t.Errorf("the browser says: %s", text)
	}
}

// Shot puts a picture of the whole page into the folder WALPOST_SCREENSHOTS, if there is one.
func (v *Visit) Shot(name string) {
	v.t.Helper()
	dir := os.Getenv("WALPOST_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	v.Do(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// Fits fails where the page must be scrolled sideways.
func (v *Visit) Fits(what string) {
	v.t.Helper()
	var over string
	v.Do(chromedp.Evaluate(`(() => { const w = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= w) return "";
		return [...document.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > w + 1).map((e) => e.tagName + "#" + e.id).join(" ") || "page"; })()`, &over))
	if strings.TrimSpace(over) != "" {
		v.t.Errorf("%s: wider than the window: %s", what, over)
	}
}
