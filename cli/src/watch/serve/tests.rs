use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn pages(audience: Audience, alive: bool) -> Pages {
    Pages { metrics: Arc::new(Metrics::default()), is_alive: Arc::new(move || alive), audience }
}

#[test]
fn pages_have_the_status_codes_that_probes_expect() {
    let dead = pages(Audience::Host, false);
    let pages = pages(Audience::Host, true);
    let status = |path: &str, pages: &Pages| page(&Method::GET, path, pages).0.as_u16();
    assert_eq!(status("/livez", &pages), 200);
    assert_eq!(status("/livez", &dead), 503);
    assert_eq!(status("/readyz", &pages), 503);
    pages.metrics.set_unready(&[]);
    assert_eq!(status("/readyz", &pages), 200);
    assert_eq!(status("/", &pages), 404);
    assert_eq!(page(&Method::POST, "/metrics", &pages).0.as_u16(), 405);
}

#[test]
fn pod_names_are_shown_only_to_the_host() {
    for (audience, is_shown) in [(Audience::Host, true), (Audience::Network, false)] {
        let pages = pages(audience, true);
        pages.metrics.set_unready(&["pod shop/web: no interface".to_owned()]);
        for path in ["/readyz", "/metrics", "/livez", "/"] {
            let (_, text) = page(&Method::GET, path, &pages);
            assert_eq!(text.contains("shop"), is_shown && path == "/readyz", "{audience:?} {path}: {text}");
        }
    }
}

#[test]
fn notes_are_shown_to_the_host_and_do_not_change_the_status() {
    for (audience, shown) in [(Audience::Host, "note: NetworkPolicy shop/p: odd\n"), (Audience::Network, "")] {
        let pages = pages(audience, true);
        pages.metrics.set_notes(&["NetworkPolicy shop/p: odd".to_owned()]);
        pages.metrics.set_unready(&[]);
        assert_eq!(page(&Method::GET, "/readyz", &pages), (StatusCode::OK, format!("ok\n{shown}")));
        pages.metrics.set_unready(&["no generation".to_owned()]);
        let (status, text) = page(&Method::GET, "/readyz", &pages);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.lines().count() > 1 || shown.is_empty(), "{text}");
        assert!(text.ends_with(shown), "{text}");
    }
}

#[test]
fn displayed_addresses_parse_again() {
    for text in ["127.0.0.1:9346", "[::1]:9346", "unix:/run/weir/health.sock"] {
        assert_eq!(text.parse::<PageAddress>().map(|it| it.to_string()), Ok(text.to_owned()));
    }
    for text in ["", "unix:", "9346", "localhost"] {
        assert!(text.parse::<PageAddress>().is_err(), "{text}");
    }
}

#[test]
fn probe_has_the_result_of_the_page() {
    let path = std::env::temp_dir().join(format!("weir-probe-{}.sock", std::process::id()));
    let address = PageAddress::Unix(path.clone());
    assert!(crate::watch::probe::ask(&address, "/livez").is_err(), "nothing listens");
    let pages = pages(Audience::Host, true);
    let metrics = Arc::clone(&pages.metrics);
    serve(address.clone(), pages, Log).expect("the path is ours");
    let ask = |page| crate::watch::probe::ask(&address, page).expect("it answers");
    assert_eq!(ask("/livez"), Ok(()));
    assert_eq!(ask("/readyz"), Err(()), "the agent is not ready");
    metrics.set_unready(&[]);
    assert_eq!(ask("/readyz"), Ok(()));
    _ = std::fs::remove_file(path);
}

/// A server on a free port of the loopback.
fn served() -> SocketAddr {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr()).expect("a free port");
    serve(PageAddress::Tcp(free), pages(Audience::Network, true), Log).expect("it is free");
    free
}

fn is_alive(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    // If no answer comes, the test must fail and not hang.
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is answered");
    text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nok\n")
}

#[test]
fn livez_answers_beside_slow_silent_and_half_open_connections() {
    let address = served();
    let connect = |say: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        // The server may have closed this connection because of later ones.
        _ = stream.write_all(say);
        stream
    };
    let silent: Vec<_> = (0..MOST).map(|_| connect(b"")).collect();
    assert!(is_alive(address), "beside silent ones");
    let slow: Vec<_> = (0..MOST).map(|_| connect(b"GET /livez HTTP/1.1\r\nHost: a\r\n")).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let dripping = {
        let (slow, stop) =
            (slow.iter().map(|it| it.try_clone().expect("a copy")).collect::<Vec<_>>(), Arc::clone(&stop));
        thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                // Writing fails on connections that the server has closed.
                slow.iter().for_each(|mut it| _ = it.write_all(b"X: y\r\n"));
                thread::sleep(Duration::from_millis(20));
            }
        })
    };
    assert!(is_alive(address), "beside slow headers");
    let half: Vec<_> = (0..MOST).map(|_| connect(b"GET /metrics HTTP/1.1\r\n")).collect();
    half.iter().for_each(|it| _ = it.shutdown(Shutdown::Write));
    assert!(is_alive(address), "beside half-open ones");
    // These clients send requests and read no answers.
    let deaf: Vec<_> = (0..MOST).map(|_| connect(&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(500))).collect();
    assert!(is_alive(address), "beside clients that do not read");
    stop.store(true, Ordering::SeqCst);
    dripping.join().expect("it ends");
    drop((silent, slow, half, deaf));
}

/// Whether the server closes the connection: a read ends, with or without an error.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    !matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn idle_connections_and_those_over_the_limit_are_closed() {
    let address = served();
    let many: Vec<_> = (0..3 * MOST).map(|_| TcpStream::connect(address).expect("the server listens")).collect();
    assert!(many.iter().all(is_closed), "the oldest ones at once, the last ones when their time is over");
    assert!(is_alive(address));
}

#[test]
fn client_that_sends_headers_without_end_is_disconnected() {
    let address = served();
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.write_all(b"GET /livez HTTP/1.1\r\n").expect("it is taken");
    let mut sending = stream.try_clone().expect("a copy");
    thread::spawn(move || {
        while sending.write_all(b"X: y\r\n").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(is_closed(&stream));
}

#[test]
fn unix_socket_answers_and_only_its_owner_may_connect() {
    let path = std::env::temp_dir().join(format!("weir-health-{}.sock", std::process::id()));
    serve(PageAddress::Unix(path.clone()), pages(Audience::Host, true), Log).expect("it is free");
    assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("the server listens");
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is answered");
    assert!(text.ends_with("ok\n"), "{text}");
    std::fs::remove_file(&path).expect("it is there");
}

#[tokio::test]
async fn the_socket_of_another_agent_stays() {
    let directory = weir_testing::files::Directory::new("two-health-sockets");
    let address = PageAddress::Unix(directory.0.join("health.sock"));
    let first = listen(&address).await.expect("it is free");
    let second = listen(&address).await.map(|_| ()).map_err(|error| error.kind());
    assert_eq!(second, Err(io::ErrorKind::AddrInUse));
    assert!(std::os::unix::net::UnixStream::connect(directory.0.join("health.sock")).is_ok());
    drop(first);
    assert!(listen(&address).await.is_ok(), "the file of an agent that has ended is replaced");
}
