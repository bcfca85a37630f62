//! A real browser, driven by chromedriver over plain HTTP on loopback. It supports only the parts of WebDriver that
//! these tests need.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

const DRIVER: &str = "/usr/bin/chromedriver";
const BROWSER: &str = "/usr/bin/chromium";
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
];

/// The longest time for an answer of the browser.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often chromedriver is started until it reports its port. It takes a port that is free at first, but another
/// process may get it before chromedriver does.
const STARTS: usize = 3;

/// Only one browser runs at a time, because browsers need much memory.
static ONE: Mutex<()> = Mutex::new(());

pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: PathBuf,
    _one: MutexGuard<'static, ()>,
}

impl Browser {
    /// The first program that is missing to start a browser.
    pub(crate) fn missing() -> Option<&'static str> {
        [DRIVER, BROWSER].into_iter().find(|it| !Path::new(it).exists())
    }

    /// Opens the page in a browser with an empty profile.
    pub(crate) fn open(page: &Path) -> Self {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let profile = std::env::temp_dir().join(format!("weir-browser-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&profile);
        std::fs::create_dir_all(&profile).expect("a directory for the profile");
        let (driver, port) = (0..STARTS).find_map(|_| start_driver()).expect("chromedriver reports its port");
        let mut browser = Self { driver, port, session: String::new(), profile, _one: one };
        let mut flags: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", browser.profile.display()));
        let options = json!({"binary": BROWSER, "args": flags});
        let capabilities = json!({"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }});
        let opened = browser.post("/session", &json!({"capabilities": capabilities}));
        browser.session = opened["sessionId"].as_str().expect("a session").to_owned();
        browser.command("url", &json!({"url": format!("file://{}", encoded(page))}));
        browser
    }

    /// Runs a piece of script in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// The result of a script, as text.
    pub(crate) fn text(&self, script: &str) -> String {
        match self.run(script) {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// Presses keys, one after the other.
    pub(crate) fn press(&self, keys: &[&str]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": code(key)})))
            .collect();
        self.command("actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}));
    }

    /// Types a text, key by key.
    pub(crate) fn type_text(&self, text: &str) {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        self.press(&letters.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Clicks in the middle of the element that a selector finds, with real mouse events.
    pub(crate) fn click(&self, selector: &str) {
        let at = self.run(&format!(
            "const node = document.querySelector({selector:?});
             node.scrollIntoView({{block: 'center', inline: 'nearest', behavior: 'instant'}});
             const box = node.getBoundingClientRect();
             return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)]"
        ));
        let actions = json!([
            {"type": "pointerMove", "duration": 0, "x": at[0], "y": at[1]},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        self.command("actions", &json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]}));
    }

    /// Waits until a script returns true.
    #[track_caller]
    pub(crate) fn wait(&self, script: &str) {
        for _ in 0..200 {
            if self.run(script) == Value::Bool(true) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("never: {script}");
    }

    /// Shows the page in a window of this size. A width below 500 is a phone.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Switches the page's scripts off or on, and loads it again.
    pub(crate) fn reload_with_scripts(&self, is_on: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": !is_on}));
        self.command("refresh", &json!({}));
    }

    /// The messages of the console since the last call: errors of scripts, and requests that the content security
    /// policy forbids.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({"type": "browser"}));
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        entries.as_array().expect("a log").iter().map(text).collect()
    }

    /// The nodes of the accessibility tree, as screen readers get them.
    pub(crate) fn accessibility_nodes(&self) -> Vec<Value> {
        let tree = self.devtools("Accessibility.getFullAXTree", &json!({}));
        tree["nodes"].as_array().expect("nodes").clone()
    }

    /// Runs a piece of script that calls its last argument with the result.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.command("execute/async", &json!({"script": script, "args": []}))
    }

    /// A picture of the window as PNG, in base64.
    pub(crate) fn picture(&self) -> String {
        let picture = self.devtools("Page.captureScreenshot", &json!({"format": "png"}));
        picture["data"].as_str().expect("a picture").to_owned()
    }

    /// Emulates `prefers-color-scheme` and the media type, such as paper.
    pub(crate) fn emulate(&self, scheme: &str, media: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let parameters = json!({"media": media, "features": features});
        self.devtools("Emulation.setEmulatedMedia", &parameters);
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.post(&format!("/session/{}/{name}", self.session), body)
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        let mut answer = request(self.port, "POST", path, &body.to_string());
        assert!(answer["value"].get("error").is_none(), "{path} {body}: {answer:#}");
        answer["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            request(self.port, "DELETE", &format!("/session/{}", self.session), "");
        }
        _ = self.driver.kill();
        _ = self.driver.wait();
        _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Starts chromedriver. `None` if it has ended before it reported its port.
fn start_driver() -> Option<(Child, u16)> {
    let mut command = Command::new(DRIVER);
    command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut driver = command.spawn().expect("chromedriver starts");
    let output = BufReader::new(driver.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(Result::ok);
    let Some(line) = lines.find(|it| it.contains("started successfully on port")) else {
        _ = driver.kill();
        _ = driver.wait();
        return None;
    };
    let digits: String =
        line.chars().rev().skip_while(|it| !it.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    Some((driver, digits.chars().rev().collect::<String>().parse().expect("a port")))
}

fn request(port: u16, method: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("chromedriver listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line).expect("a header") > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).unwrap_or(Value::Null)
}

fn code(key: &str) -> &str {
    match key {
        "Tab" => "\u{e004}",
        "Enter" => "\u{e007}",
        "Escape" => "\u{e00c}",
        "End" => "\u{e010}",
        "Home" => "\u{e011}",
        "Left" => "\u{e012}",
        "Up" => "\u{e013}",
        "Right" => "\u{e014}",
        "Down" => "\u{e015}",
        other => other,
    }
}

fn encoded(path: &Path) -> String {
    let bytes = path.to_str().expect("a path of text").bytes();
    let one = |byte: u8| match byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    bytes.map(one).collect()
}
