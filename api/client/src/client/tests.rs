//! The client against scripted transports and against a real TLS server.

use std::collections::VecDeque;

use futures::future::BoxFuture;

use super::*;
use crate::connector;
use crate::transport;

/// Answers from a script and remembers what was asked.
#[derive(Debug)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    seen: Mutex<Vec<Request<Bytes>>>,
}

#[derive(Debug)]
enum Answer {
    Refused,
    Broken,
    Hang,
    Reply(Response<&'static str>),
}

fn reply(code: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Answer {
    let mut builder = Response::builder().status(code);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    Answer::Reply(builder.body(body).unwrap())
}

impl Transport for Script {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, transport::Error>> {
        Box::pin(async move {
            self.seen.lock().unwrap().push(request);
            let answer = self.answers.lock().unwrap().pop_front();
            match answer.expect("the script has an answer for every request") {
                Answer::Refused => Err(transport::Error::Connect(connector::Error::Closed)),
                Answer::Broken => Err(transport::Error::Broken("cut".into())),
                Answer::Hang => std::future::pending().await,
                Answer::Reply(response) => Ok(response.map(Body::full)),
            }
        })
    }
}

fn client(answers: impl IntoIterator<Item = Answer>, options: Options) -> (Client, Arc<Script>) {
    let script = Arc::new(Script {
        answers: Mutex::new(answers.into_iter().collect()),
        seen: Mutex::default(),
    });
    (
        Client::new(Arc::clone(&script) as Arc<dyn Transport>, options),
        script,
    )
}

async fn send(method: Method, answers: impl IntoIterator<Item = Answer>) -> (Result<Bytes, Error>, usize) {
    let (client, script) = client(answers, Options::default());
    let result = client.request(request(method, "/x", None).unwrap()).await;
    let asked = script.seen.lock().unwrap().len();
    (result.map(Response::into_body), asked)
}

#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_only_if_it_was_not_sent() {
    let (result, asked) = send(Method::POST, [Answer::Refused, reply(201, &[], "ok")]).await;
    assert_eq!((result.unwrap().as_ref(), asked), (&b"ok"[..], 2));

    let (result, asked) = send(Method::POST, [Answer::Broken]).await;
    let error = result.unwrap_err();
    assert_eq!(asked, 1);
    assert!(error.may_have_happened() && error.is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_read_is_repeated_a_bounded_number_of_times() {
    let (result, asked) = send(
        Method::GET,
        [Answer::Broken, Answer::Refused, reply(200, &[], "ok")],
    )
    .await;
    assert_eq!((result.unwrap().as_ref(), asked), (&b"ok"[..], 3));
    let (result, asked) = send(Method::GET, (0..9).map(|_| Answer::Broken)).await;
    assert!(matches!(result, Err(Error::Transport(_))));
    assert_eq!(asked, 4);
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_waits_as_long_as_the_server_asks() {
    let start = tokio::time::Instant::now();
    let (result, asked) = send(
        Method::POST,
        [reply(429, &[("retry-after", "7")], ""), reply(201, &[], "ok")],
    )
    .await;
    assert_eq!((result.unwrap().as_ref(), asked), (&b"ok"[..], 2));
    assert!(
        start.elapsed() >= Duration::from_secs(7),
        "virtual time: {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn other_refusals_are_not_repeated() {
    let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"tasks.panda.dev \"x\" already exists","reason":"AlreadyExists","code":409}"#;
    let (result, asked) = send(Method::POST, [reply(409, &[], body)]).await;
    assert!(result.unwrap_err().is_already_exists());
    assert_eq!(asked, 1);
    let (result, _) = send(Method::GET, [reply(502, &[], "<html>bad gateway</html>")]).await;
    let error = result.unwrap_err();
    assert_eq!(error.status().unwrap().code, 502);
    assert!(error.to_string().contains("bad gateway"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_a_timeout() {
    let (result, _) = send(Method::PUT, [Answer::Hang]).await;
    assert!(matches!(result.unwrap_err(), Error::Timeout { after, .. } if after == Duration::from_secs(30)));
}

#[tokio::test]
async fn an_answer_beyond_the_bound_is_refused() {
    let options = Options {
        max_response_bytes: 4,
        ..Options::default()
    };
    let (client, _) = client([reply(200, &[], "12345")], options);
    let error = client.get_text("/x").await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 4, .. }));
}

#[tokio::test]
async fn warnings_reach_the_handler_and_traces_the_server() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    let options = Options {
        on_warning: Some(Arc::new(move |text: &str| {
            ears.lock().unwrap().push(text.to_owned())
        })),
        ..Options::default()
    };
    let warning = reply(200, &[("warning", r#"299 - "unknown field \"spec.a\"""#)], "{}");
    let (client, script) = client([warning], options);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    client.with_traceparent(Some(trace)).get_text("/x").await.unwrap();
    assert_eq!(*heard.lock().unwrap(), ["unknown field \"spec.a\""]);
    assert_eq!(script.seen.lock().unwrap()[0].headers()["traceparent"], trace);
}
