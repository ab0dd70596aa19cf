//! Token buckets.

use tollgate_core::{Error, Headroom, Limit, Policy, Span, TokenBucket};

use crate::story::{SECOND, Story, at, policy};

const REQUEST: [(&str, u64); 1] = [("requests", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![
        acquire()?,
        exact()?,
        retry()?,
        partial()?,
        interval()?,
        sevenths()?,
        large_prime()?,
        giving_back()?,
        trap()?,
        slow_calls()?,
        lowered()?,
        many_lows()?,
        after_empty()?,
        interval_giving_back()?,
        derived()?,
        debt()?,
    ])
}

fn tokens(bucket: TokenBucket) -> Result<Policy, Error> {
    policy([Limit::new("tpm", "tokens", bucket)])
}

fn burst() -> Result<Policy, Error> {
    policy([Limit::new("burst", "requests", TokenBucket::per_second(1).burst(10))])
}

fn acquire() -> Result<Story, Error> {
    let why = "R000.1: of 5,000 tokens 3,750 are taken at once and 1,250 remain, which cannot be taken twice";
    Ok(Story::new("bucket-acquire", why, &tokens(TokenBucket::per_minute(5_000))?)
        .acquire(at(0), &[("tokens", 3_750)])
        .acquire(at(0), &[("tokens", 1_251)])
        .acquire(at(0), &[("tokens", 1_250)])
        .acquire(at(0), &[("tokens", 1)]))
}

fn exact() -> Result<Story, Error> {
    let why = "R000.8: 10,000 less 3,750 is exactly 6,250";
    Ok(Story::new("bucket-exact", why, &tokens(TokenBucket::per_minute(10_000))?)
        .look(at(0))
        .acquire(at(0), &[("tokens", 3_750)]))
}

fn retry() -> Result<Story, Error> {
    let why = "R000.2: with 1,000 tokens left 3,750 are refused, one microsecond before the promised time too, and \
               admitted at it";
    Ok(Story::new("bucket-retry", why, &tokens(TokenBucket::per_minute(5_000))?)
        .acquire(at(0), &[("tokens", 4_000)])
        .acquire(at(0), &[("tokens", 3_750)])
        .acquire(at(33) - 1, &[("tokens", 3_750)])
        .acquire(at(33), &[("tokens", 3_750)]))
}

fn partial() -> Result<Story, Error> {
    let why =
        "R000.5: 30 s bring back 2.5 requests and 125,000 tokens; the half request is not lost";
    let policy = policy([
        Limit::new("rpm", "requests", TokenBucket::per_minute(5)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
    ])?;
    Ok(Story::new("bucket-partial-refill", why, &policy)
        .acquire(at(0), &[("requests", 5), ("tokens", 250_000)])
        .look(at(30))
        .acquire(at(30), &[("requests", 2), ("tokens", 125_000)])
        .acquire(at(30), &[("requests", 1)])
        .acquire(at(36) - 1, &[("requests", 1)])
        .acquire(at(36), &[("requests", 1)])
        .look(at(96)))
}

fn interval() -> Result<Story, Error> {
    let why = "R000.4: the whole refill comes at the minute boundary, once";
    let policy = policy([
        Limit::new("rpm", "requests", TokenBucket::per_minute(5).at_boundaries()),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000).at_boundaries()),
    ])?;
    Ok(Story::new("bucket-interval", why, &policy)
        .acquire(at(10), &[("requests", 5), ("tokens", 250_000)])
        .acquire(at(59), &[("requests", 1)])
        .acquire(at(60) - 1, &[("requests", 1)])
        .acquire(at(60), &[("requests", 5), ("tokens", 250_000)])
        .acquire(at(61), &[("requests", 1)])
        .look(at(119))
        .look(at(120)))
}

fn sevenths() -> Result<Story, Error> {
    let why =
        "7 per minute has no whole number of microseconds per token, and nothing is rounded away";
    let policy = policy([Limit::new("rpm", "requests", TokenBucket::per_minute(7))])?;
    let seventh = at(0) + 60 * SECOND / 7;
    Ok(Story::new("bucket-sevenths", why, &policy)
        .acquire(at(0), &[("requests", 7)])
        .acquire(at(0), &REQUEST)
        .acquire(seventh, &REQUEST)
        .acquire(seventh + 1, &REQUEST)
        .acquire(seventh + 1, &REQUEST)
        .acquire(at(60), &[("requests", 6)])
        .acquire(at(60), &REQUEST)
        .look(at(120) - 1)
        .look(at(120)))
}

fn large_prime() -> Result<Story, Error> {
    let why = "999,983 per second, a prime: after a whole second exactly the whole amount is back";
    let policy = policy([Limit::new("rps", "requests", TokenBucket::per_second(999_983))])?;
    Ok(Story::new("bucket-large-prime", why, &policy)
        .acquire(at(0), &[("requests", 999_983)])
        .acquire(at(0), &REQUEST)
        .acquire(at(0) + 1, &REQUEST)
        .acquire(at(0) + 2, &REQUEST)
        .acquire(at(1), &[("requests", 999_983)])
        .acquire(at(1), &[("requests", 999_982)])
        .acquire(at(2) + 1, &[("requests", 999_983)])
        .acquire(at(2) + 2, &[("requests", 999_983)]))
}

fn giving_back() -> Result<Story, Error> {
    let why = "settling below the estimate credits what time has not given back; settling twice changes nothing";
    Ok(Story::new("bucket-settle", why, &burst()?)
        .acquire(at(0), &[("requests", 10)])
        .settle(at(3), 0, &[("requests", 1)])
        .settle(at(3), 0, &[("requests", 0)])
        .release(at(3), 0)
        .acquire(at(3), &[("requests", 9)])
        .settle(at(4), 4, &[])
        .settle(at(4), 4, &[("requests", 0)]))
}

fn trap() -> Result<Story, Error> {
    let why = "giving back must not make room twice: take 10, wait 10 s, take 10, release the first, take 10";
    Ok(Story::new("bucket-no-room-twice", why, &burst()?)
        .acquire(at(0), &[("requests", 10)])
        .acquire(at(10), &[("requests", 10)])
        .release(at(10), 0)
        .acquire(at(10), &[("requests", 10)])
        .acquire(at(20) - 1, &[("requests", 10)])
        .acquire(at(20), &[("requests", 10)]))
}

fn interval_giving_back() -> Result<Story, Error> {
    let why = "an interval bucket gets back everything before the boundary and nothing after it";
    let policy =
        policy([Limit::new("rpm", "requests", TokenBucket::per_minute(5).at_boundaries())])?;
    Ok(Story::new("bucket-interval-settle", why, &policy)
        .acquire(at(10), &[("requests", 3)])
        .acquire(at(20), &[("requests", 2)])
        .release(at(59), 0)
        .acquire(at(59), &[("requests", 3)])
        .acquire(at(60), &[("requests", 5)])
        .release(at(60), 1)
        .settle(at(60), 3, &[("requests", 1)])
        .acquire(at(60), &REQUEST))
}

fn derived() -> Result<Story, Error> {
    let why = "headroom in percent rounds up, margin and block_ttl take what flows in during them: \
               20 - ceil(12% of 20 = 2.4) - ceil(10/s x 0.75 s = 7.5) = 9; the permit says use_by";
    let limit = Limit::new("burst", "requests", TokenBucket::per_second(10).burst(20))
        .headroom(Headroom::Percent(12))
        .margin(Span::from_millis(250));
    let policy = Policy::builder("story").limit(limit).block_ttl(Span::from_millis(500)).build()?;
    Ok(Story::new("bucket-derived", why, &policy)
        .look(at(0))
        .acquire(at(0), &[("requests", 10)])
        .acquire(at(0), &[("requests", 9)])
        .acquire(at(0), &REQUEST)
        .acquire(at(0) + SECOND / 10, &REQUEST))
}

fn debt() -> Result<Story, Error> {
    let why = "a charge is made whether it fits or not, settling for more adds to it, and both are waited for";
    Ok(Story::new("bucket-debt", why, &burst()?)
        .charge(at(0), &[("requests", 25)])
        .acquire(at(0), &REQUEST)
        .acquire(at(16) - 1, &REQUEST)
        .acquire(at(16), &REQUEST)
        .settle(at(16), 3, &[("requests", 12)])
        .look(at(17))
        .acquire(at(28) - 1, &REQUEST)
        .acquire(at(28), &REQUEST))
}

fn slow() -> Result<Policy, Error> {
    policy([Limit::new("burst", "requests", TokenBucket::per_second(10).burst(100))])
}

fn slow_calls() -> Result<Story, Error> {
    let why = "a late release: the level is as without the charge, refill included";
    Ok(Story::new("bucket-slow-calls", why, &slow()?)
        .acquire(at(0), &[("requests", 50)])
        .acquire(at(0), &[("requests", 30)])
        .acquire(at(0), &[("requests", 20)])
        .release(at(2), 2)
        .settle(at(3), 0, &[("requests", 20)])
        .settle(at(3), 1, &[("requests", 45)])
        .look(at(3)))
}

fn lowered() -> Result<Story, Error> {
    let why = "two releases do not give back the same room: each is judged on the history that the other corrected";
    let bucket = TokenBucket::per_second(1).burst(20);
    Ok(Story::new("bucket-lows-lowered", why, &policy([Limit::new("burst", "requests", bucket)])?)
        .acquire(at(0), &[("requests", 10)])
        .acquire(at(0), &[("requests", 10)])
        .acquire(at(8), &[("requests", 6)])
        .acquire(at(9), &[("requests", 2)])
        .release(at(10), 0)
        .release(at(11), 1)
        .release(at(11), 3)
        .release(at(12), 2)
        .look(at(12)))
}

fn many_lows() -> Result<Story, Error> {
    let why =
        "more lows than are kept: the closest merge to the strict side, and the others stay exact";
    let bucket = TokenBucket::per(1, Span::from_hours(1)).burst(100_000);
    let mut story =
        Story::new("bucket-many-lows", why, &policy([Limit::new("burst", "requests", bucket)])?);
    for number in 0..70u64 {
        story = story.acquire(at(number), &[("requests", 1 + (number * 37) % 23)]);
    }
    for permit in (0..70).map(|number| (number * 29) % 70) {
        story = story.release(at(100 + permit as u64), permit);
    }
    Ok(story.look(at(200)))
}

fn after_empty() -> Result<Story, Error> {
    let why = "what was charged before the bucket was empty gives nothing back, and what came after gives back all";
    Ok(Story::new("bucket-after-empty", why, &slow()?)
        .acquire(at(0), &[("requests", 30)])
        .acquire(at(3), &[("requests", 40)])
        .acquire(at(4), &[("requests", 50)])
        .release(at(5), 0)
        .release(at(5), 1)
        .settle(at(6), 2, &[("requests", 60)])
        .look(at(6)))
}
