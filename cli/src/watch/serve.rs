//! `/metrics`, `/livez`, `/readyz`: three pages over HTTP/1.1, one thread, one request a connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::metrics::Metrics;

/// Who asks has so long to say what.
const PATIENCE: Duration = Duration::from_secs(2);
/// A request line with its headers is no longer.
const LONGEST: u64 = 16 << 10;

/// Answers for as long as the process lives. `is_alive` is asked for each `/livez`.
pub(crate) fn serve(listener: &TcpListener, metrics: &Arc<Metrics>, is_alive: impl Fn() -> bool) {
    for connection in listener.incoming().flatten() {
        // Who does not listen to the answer has had it.
        _ = answer(&connection, metrics, &is_alive);
    }
}

fn answer(connection: &TcpStream, metrics: &Metrics, is_alive: impl Fn() -> bool) -> std::io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(connection.take(LONGEST)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The headers are read, and not looked at: closing before would reset the connection.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (status, text) = page(&request, metrics, is_alive);
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let mut connection = connection;
    connection.write_all((head + &text).as_bytes())
}

fn page(request: &str, metrics: &Metrics, is_alive: impl Fn() -> bool) -> (&'static str, String) {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => ("200 OK", metrics.text()),
        ("GET", "/livez") if is_alive() => ("200 OK", "ok\n".to_owned()),
        ("GET", "/livez") => ("503 Service Unavailable", "the agent does not move\n".to_owned()),
        ("GET", "/readyz") => match metrics.unready() {
            None => ("200 OK", metrics.ready()),
            Some(why) => ("503 Service Unavailable", format!("{why}\n")),
        },
        ("GET", _) => ("404 Not Found", "there are /metrics, /livez and /readyz\n".to_owned()),
        _ => ("405 Method Not Allowed", "there are /metrics, /livez and /readyz, to GET\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_answer_as_probes_expect() {
        let metrics = Metrics::default();
        let status = |request: &str, alive: bool| page(request, &metrics, || alive).0[..3].to_owned();
        assert_eq!(status("GET /livez HTTP/1.1", true), "200");
        assert_eq!(status("GET /livez HTTP/1.1", false), "503");
        assert_eq!(status("GET /readyz?verbose HTTP/1.1", true), "503");
        metrics.set_unready(Vec::new());
        assert_eq!(status("GET /readyz?verbose HTTP/1.1", true), "200");
        assert_eq!(status("GET / HTTP/1.1", true), "404");
        assert_eq!(status("POST /metrics HTTP/1.1", true), "405");
        assert_eq!(status("", true), "405");
    }

    #[test]
    fn a_client_that_says_nothing_does_not_stop_the_others() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || serve(&listener, &Arc::new(Metrics::default()), || true));
        let _silent = TcpStream::connect(address).expect("somebody listens");
        let mut asking = TcpStream::connect(address).expect("somebody listens");
        asking.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is read");
        let mut text = String::new();
        asking.read_to_string(&mut text).expect("it is answered");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nok\n"), "{text}");
    }
}
