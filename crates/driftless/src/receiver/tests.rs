use super::*;

fn config(tracing: &Tracing, environment: &[(&str, &str)]) -> Result<Option<Config>, String> {
    let var = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        found.filter(|value| !value.is_empty())
    };
    tracing.config("server", "s1", &var).map_err(|trouble| trouble.to_string())
}

fn by(environment: &[(&str, &str)]) -> Option<Config> {
    config(&Tracing::default(), environment).unwrap()
}

fn refused(environment: &[(&str, &str)]) -> String {
    config(&Tracing::default(), environment).unwrap_err()
}

const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317");

#[test]
fn who_names_no_receiver_makes_no_spans() {
    assert!(by(&[]).is_none());
    assert!(by(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).is_none());
    assert!(by(&[HERE, ("OTEL_SDK_DISABLED", "true")]).is_none());
    assert!(by(&[HERE, ("OTEL_TRACES_EXPORTER", "none")]).is_none());
    let none = Tracing { endpoint: Some(String::new()), ..Tracing::default() };
    assert!(config(&none, &[HERE]).unwrap().is_none(), "an empty flag says none, whatever the environment says");
}

#[test]
fn the_flag_comes_first_then_what_is_said_of_traces_then_what_is_said_of_all() {
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:4317");
    let flag = Tracing { endpoint: Some("http://c:4317".into()), ..Tracing::default() };
    let of = |tracing: &Tracing, environment: &[(&str, &str)]| {
        config(tracing, environment).unwrap().unwrap().endpoint.to_string()
    };
    assert_eq!(of(&Tracing::default(), &[HERE]), "http://a:4317");
    assert_eq!(of(&Tracing::default(), &[HERE, traces]), "http://b:4317");
    assert_eq!(of(&flag, &[HERE, traces]), "http://c:4317");
}

#[test]
fn what_can_not_be_right_is_refused_with_its_name_and_what_to_write() {
    for (environment, parts) in [
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")], ["OTEL_EXPORTER_OTLP_ENDPOINT \"nonsense\"", "http://127"]),
        (vec![("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a:1/v1")], ["OTLP_TRACES_ENDPOINT", "http://HOST:PORT"]),
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:4317")], ["https://a:4317", "OTEL_EXPORTER_OTLP_CERTIFICATE"]),
        (vec![HERE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], ["OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"]),
        (vec![HERE, ("OTEL_TRACES_SAMPLER", "jaeger_remote")], ["OTEL_TRACES_SAMPLER", "traceidratio"]),
        (vec![HERE, ("OTEL_TRACES_SAMPLER_ARG", "2")], ["OTEL_TRACES_SAMPLER_ARG is \"2\"", "from 0 to 1"]),
        (vec![HERE, ("OTEL_BSP_MAX_QUEUE_SIZE", "0")], ["OTEL_BSP_MAX_QUEUE_SIZE", "from 1 to 65536"]),
    ] {
        let said = refused(&environment);
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn the_sampler_is_opentelemetrys_unless_the_ratio_is_said() {
    let ratio = |environment: &[(&str, &str)]| by(&[&[HERE], environment].concat()).unwrap().ratio;
    assert_eq!(ratio(&[]), RATIO);
    assert_eq!(ratio(&[("OTEL_TRACES_SAMPLER_ARG", "0.25")]), 0.25);
    assert_eq!(ratio(&[("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_TRACES_SAMPLER_ARG", "0.25")]), 1.0);
    assert_eq!(ratio(&[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]), 0.0);
    assert_eq!(ratio(&[("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.5")]), 0.5);
    let said = Tracing { ratio: Some(0.75), ..Tracing::default() };
    assert_eq!(config(&said, &[HERE, ("OTEL_TRACES_SAMPLER", "always_on")]).unwrap().unwrap().ratio, 0.75);
}

#[test]
fn the_process_is_called_what_the_environment_calls_it() {
    let own = by(&[HERE]).unwrap();
    assert_eq!((own.service.as_str(), own.instance.as_str(), own.queue), ("driftless-server", "s1", QUEUE_DEFAULT));
    let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "team=a%2Cb, service.name=other,broken,=x,%zz=1");
    let said = by(&[HERE, attributes, ("OTEL_SERVICE_NAME", "mine"), ("OTEL_BSP_MAX_QUEUE_SIZE", "16")]).unwrap();
    assert_eq!((said.service.as_str(), said.queue), ("mine", 16));
    let pairs: Vec<(&str, &str)> = said.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(pairs, [("team", "a,b"), ("%zz", "1")], "the name of its own variable wins");
}

#[test]
fn https_reads_the_files_that_it_takes() {
    let dir = std::env::temp_dir().join(format!("driftless-receiver-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (good, bad) = (file("good", "-----BEGIN CERTIFICATE-----"), file("bad", "nonsense"));
    let of = |ca: &PathBuf, certificate: Option<&PathBuf>, key: Option<&PathBuf>| {
        let (certificate, key) = (certificate.cloned(), key.cloned());
        let endpoint = Some("https://a:4317".to_owned());
        config(&Tracing { endpoint, ca: Some(ca.clone()), certificate, key, ..Tracing::default() }, &[])
    };
    let tls = of(&good, Some(&good), Some(&good)).unwrap().unwrap().tls.unwrap();
    assert!(tls.identity.is_some() && tls.ca.starts_with(b"-----BEGIN"));
    assert!(of(&bad, None, None).unwrap_err().contains("nothing in PEM"));
    assert!(of(&dir.join("none"), None, None).unwrap_err().contains("cannot read it"));
    assert!(of(&good, Some(&good), None).unwrap_err().contains("go together"));
    fs::remove_dir_all(&dir).unwrap();
}
