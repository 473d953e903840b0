use super::*;

const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_context_is_read_as_it_is_written() {
    let context = Context::parse(TEXT).unwrap();
    assert!(context.sampled);
    assert_eq!(context.to_string(), TEXT);
    assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
    let child = context.child();
    assert_eq!((child.trace, child.sampled), (context.trace, true));
    assert_ne!(child.span, context.span);
}

#[test]
fn what_is_not_well_formed_is_none() {
    let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
    let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
    let wrong_version = TEXT.replacen("00", "ff", 1);
    let longer = format!("{TEXT}-more");
    let (underscores, letters, loud) = (TEXT.replace('-', "_"), TEXT.replace('f', "g"), TEXT.to_uppercase());
    for text in ["", "00", &TEXT[..54], &underscores, &letters, &loud, &zero_trace, &zero_span, &wrong_version, &longer]
    {
        assert_eq!(Context::parse(text), None, "{text}");
        assert_eq!(received(text), "", "{text}");
    }
}

#[test]
fn a_later_version_may_say_more_which_is_not_kept() {
    let later = TEXT.replacen("00", "42", 1);
    for text in [&later, &format!("{later}-{}", "x".repeat(7000))] {
        assert_eq!(received(text), TEXT);
    }
    assert_eq!(received(&format!("{later}more")), "", "more stands behind a dash");
}

#[test]
fn the_flag_alone_says_whether_it_is_sampled() {
    for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("03", true), ("0f", true)] {
        let text = format!("{}{flags}", &TEXT[..53]);
        assert_eq!(is_sampled(&text), sampled, "{flags}");
        assert_eq!(Context::parse(&text).unwrap().sampled, sampled, "{flags}");
        assert!(!is_sampled(&unsampled(text)));
    }
    assert!(!is_sampled(""));
}

#[test]
fn the_ratio_is_kept() {
    let of = |ratio: f64| (0..2_000).filter(|_| Context::random(false).sampled(ratio).sampled).count();
    assert_eq!(of(0.0), 0);
    assert_eq!(of(1.0), 2_000);
    // Ten standard deviations around 200.
    assert!((66..334).contains(&of(0.1)));
}

#[test]
fn without_a_receiver_there_are_ids_and_no_spans() {
    let tracer = Tracer::off();
    assert!(tracer.child(TEXT, &names::STORE_COMMIT).is_none());
    let root = tracer.root();
    assert!(!root.sampled && root.trace != 0);
    assert_eq!(context_of(None, TEXT), TEXT, "it's handed on as it came");
}

/// A row of the table in the docs.
fn row(name: &Name) -> String {
    let attributes: Vec<String> = name.attributes.iter().map(|attribute| format!("`{}`", attribute.0)).collect();
    let kind = format!("{:?}", name.kind).to_lowercase();
    format!("| `{}` | {kind} | {} | {} | {} |", name.name, name.by, name.under, attributes.join(", "))
}

#[test]
fn the_docs_list_every_span() {
    let docs = include_str!("../../../../docs/TELEMETRY.md");
    let section = docs.split("\n## ").find(|section| section.starts_with("Spans")).expect("a section Spans");
    let listed: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> = names::ALL.iter().map(|name| row(name)).collect();
    assert_eq!(
        listed.join("\n"),
        expected.join("\n"),
        "the table in docs/TELEMETRY.md should read like the second one"
    );
}
